"""libgdp beside FLA's chunk_gated_delta_product: times and accuracy, on one GPU, in one process.

    python3 bench/peer_fla.py [NAME ...] [--gate strong|weak] [--repeat 30] [--json FILE]

Wants PyTorch with CUDA and FLA (pip install fla-core flash-linear-attention), and libgdp.so in build/ or where
--library or GDP_LIBRARY says. Workloads as in `gdp bench`; without a name, all.

Calls of both alternate. Before each the device waits for a few milliseconds, so that the host has queued the
whole call when its time begins: neither side's time is that of its launches. FLA's GDP has no grouped heads, so
q and k are repeated for it, which is timed apart and not part of its time.

FLA refuses its gated backward on Hopper with Triton 3.4.0 to 3.7.0, as that Triton computes it wrongly. Here the
refusal is skipped for the time alone; gradients made so are never compared with anything.
"""
import argparse
import json
import math
import statistics
import sys
import time
from ctypes import byref

import gdp_ctypes as gdp


def leave(sentence, status):
    print(f"peer_fla.py: {sentence}", file=sys.stderr)
    sys.exit(status)


try:
    import torch
except ImportError:
    leave("PyTorch is not installed", 3)

# name: B, T, H, HV, K, V, n
WORKLOADS = {
    "production": (1, 32768, 8, 32, 128, 64, 3),
    "main": (1, 32768, 16, 16, 128, 128, 2),
    "batch": (4, 8192, 16, 16, 128, 128, 2),
    "long": (1, 131072, 8, 8, 128, 128, 2),
    "n4": (1, 32768, 16, 16, 128, 128, 4),
    "gdn": (1, 32768, 16, 32, 128, 128, 1),
    "many": (8, 1024, 16, 64, 128, 128, 1),
}
DTYPES = {torch.float32: gdp.F32, torch.bfloat16: gdp.BF16, torch.float16: gdp.F16}
GRADIENTS = ("dq", "dk", "dv", "dg", "dbeta")


# ---- data

def make_inputs(shape, gate, beta_range, seed=0):
    """q, k, v, g, beta, do. gate: "strong" and "weak" as in gdp bench, or a: g = a log(uniform)."""
    B, T, H, HV, K, V, n = shape
    random = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=random, device="cuda", dtype=torch.bfloat16)

    def uniform(*size):
        return torch.rand(*size, generator=random, device="cuda", dtype=torch.float32)

    def unit(x):
        return torch.nn.functional.normalize(x.float(), dim=-1).to(x.dtype)

    q, k, v, d_o = unit(normal(B, T, H, K)), unit(normal(B, T * n, H, K)), normal(B, T * n, HV, V), normal(B, T, HV, V)
    if isinstance(gate, str):
        g = (-0.1 if gate == "strong" else -0.002) * uniform(B, T, HV)
    else:
        g = gate * torch.log(uniform(B, T, HV).clamp_min(1e-12))
    return q, k, v, g, beta_range * uniform(B, T * n, HV), d_o


# ---- ours

def as_tensor(x):
    t = gdp.Tensor(data=x.data_ptr(), dtype=DTYPES[x.dtype], rank=x.dim())
    for i in range(x.dim()):
        t.shape[i], t.stride[i] = x.shape[i], x.stride(i)
    return t


class Ours:
    """Plans of a shape, and calls on PyTorch's memory and stream."""

    def __init__(self, library, context, shape, inputs, config_text=""):
        B, T, H, HV, K, V, n = shape
        q, k, v, g, beta, d_o = self.keep = inputs
        self.library = library
        problem = gdp.Problem(batch=B, tokens=T, heads=H, value_heads=HV, dim_k=K, dim_v=V, num_householder=n,
                              dtype=gdp.BF16, gate_dtype=gdp.F32, beta_dtype=gdp.F32, index_dtype=4)
        begin = time.perf_counter()
        self.forward_plan = library.plan(context, problem, library.config(config_text), 0)
        self.backward_plan = library.plan(context, problem, library.config(config_text), gdp.PLAN_BACKWARD)
        self.start = time.perf_counter() - begin
        self.sizes = library.sizes(self.backward_plan)
        self.config_text = library.config_text(self.backward_plan)
        room = max(self.sizes.workspace, library.sizes(self.forward_plan).workspace)
        self.workspace = torch.empty(max(room, 1), dtype=torch.uint8, device="cuda")
        self.saved_memory = torch.empty(max(self.sizes.saved, 1), dtype=torch.uint8, device="cuda")
        self.o = torch.empty_like(d_o)
        self.gradients = [torch.empty_like(x) for x in (q, k, v, g, beta)]
        self.inputs = gdp.Inputs(q=as_tensor(q), k=as_tensor(k), v=as_tensor(v), g=as_tensor(g), beta=as_tensor(beta),
                                 num_householder=n)
        self.outputs = gdp.Outputs(o=as_tensor(self.o))
        self.d_outputs = gdp.OutputGradients(d_o=as_tensor(d_o))
        self.d_inputs = gdp.InputGradients(**dict(zip(GRADIENTS, map(as_tensor, self.gradients))))
        self.saved = gdp.SavedContext(data=self.saved_memory.data_ptr(), bytes=self.sizes.saved)

    def execution(self):
        return gdp.Execution(workspace=self.workspace.data_ptr(), workspace_bytes=self.workspace.numel(),
                             stream=torch.cuda.current_stream().cuda_stream)

    def forward(self):
        c = self.library.c
        self.library.check(c.gdp_forward(self.forward_plan, byref(self.inputs), byref(self.outputs), None,
                                         byref(self.execution())))

    def forward_saving(self):
        c = self.library.c
        self.library.check(c.gdp_forward(self.backward_plan, byref(self.inputs), byref(self.outputs),
                                         byref(self.saved), byref(self.execution())))

    def backward(self):
        c = self.library.c
        self.library.check(c.gdp_backward(self.backward_plan, byref(self.inputs), byref(self.d_outputs),
                                          byref(self.saved), byref(self.d_inputs), byref(self.execution())))

    def extra_bytes(self):
        made = [self.o] + self.gradients
        return self.sizes.workspace + self.sizes.saved + sum(x.numel() * x.element_size() for x in made)

    def close(self):
        torch.cuda.synchronize()
        self.library.c.gdp_plan_destroy(self.forward_plan)
        self.library.c.gdp_plan_destroy(self.backward_plan)


# ---- FLA

def skip_refusal(error):
    """Makes FLA's next backward run for its time alone. False: this is no refusal that is known here."""
    if "produces incorrect results" not in str(error):
        return False
    from fla.ops.common import chunk_o
    if not hasattr(chunk_o, "TRITON_ABOVE_3_7_1"):
        return False
    print("note: FLA's refusal of its backward is skipped, for the time alone", file=sys.stderr)
    chunk_o.TRITON_ABOVE_3_7_1 = True
    return True


class Fla:
    refusal_skipped = False

    def __init__(self, shape, inputs):
        from fla.ops.gated_delta_product import chunk_gated_delta_product
        H, HV, self.n = shape[2], shape[3], shape[6]
        q, k, v, g, beta, self.d_o = inputs
        self.function, self.groups, self.q, self.k = chunk_gated_delta_product, HV // H, q, k
        self.leaves = [x.detach().requires_grad_() for x in (*self.repeat(), v, g, beta)]

    def repeat(self):
        if self.groups == 1:
            return self.q, self.k
        return tuple(x.repeat_interleave(self.groups, dim=2) for x in (self.q, self.k))

    def forward(self):
        with torch.no_grad():
            self.o = self.function(*self.leaves, self.n)[0]

    def forward_saving(self):
        self.o = self.function(*self.leaves, self.n)[0]

    def backward(self):
        def run():
            return torch.autograd.grad(self.o, self.leaves, self.d_o, retain_graph=True)
        try:
            self.gradients = run()
        except RuntimeError as error:
            if not skip_refusal(error):
                raise
            Fla.refusal_skipped = True
            self.gradients = run()

    def start(self):
        """Seconds until the first results of both directions: Triton compiles and tunes."""
        begin = time.perf_counter()
        self.forward_saving()
        self.backward()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    def extra_bytes(self):
        self.o = self.gradients = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.forward_saving()
        self.backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


# ---- times

def timed(call):
    """A pair of events around a call that is queued while the device still waits."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10_000_000)
    begin.record()
    call()
    end.record()
    return begin, end


def alternate(calls, repeat):
    """[(median, min, p10, p90) in ms of each call], the calls taking turns."""
    for _ in range(3):
        for call in calls:
            call()
    torch.cuda.synchronize()
    events = [[] for _ in calls]
    for _ in range(repeat):
        for list_, call in zip(events, calls):
            list_.append(timed(call))
        torch.cuda.synchronize()
    spread = []
    for list_ in events:
        times = sorted(begin.elapsed_time(end) for begin, end in list_)
        last = len(times) - 1
        spread.append((statistics.median(times), times[0], times[last // 10], times[last - last // 10]))
    return spread


def floors(shape, bandwidth, matrix):
    """ms, forward and backward, as gdp bench defines them."""
    B, T, H, HV, K, V, n = shape
    o = 2 * B * T * HV * V
    forward = 2 * B * T * (H * K + n * H * K + n * HV * V) + 4 * B * T * HV * (1 + n) + o
    products = 2.0 * B * T * HV * (2 * n + 1) * K * V
    return [1e3 * max(size / (1e12 * bandwidth), flops / (1e12 * matrix))
            for size, flops in ((forward, products), (2 * forward - o, 2 * products))]


def measure(name, library, context, options):
    shape = WORKLOADS[name]
    inputs = make_inputs(shape, options.gate, options.beta)
    ours = Ours(library, context, shape, inputs, options.config)
    row = {"workload": name, "config": ours.config_text, "ours_start_s": ours.start,
           "ours_extra_mb": 1e-6 * ours.extra_bytes()}
    row["floor_forward_ms"], row["floor_backward_ms"] = floors(shape, options.bandwidth, options.matrix)
    sides = [("ours", ours)]
    if not options.skip_fla:
        fla = Fla(shape, inputs)
        row["fla_start_s"] = fla.start()
        row["fla_extra_mb"] = 1e-6 * fla.extra_bytes()
        if fla.groups > 1:
            row["fla_repeat_ms"] = alternate([fla.repeat], options.repeat)[0][0]
        sides.append(("fla", fla))
    for direction in ("forward", "forward_saving", "backward"):
        spread = alternate([getattr(side, direction) for _, side in sides], options.repeat)
        for (side, _), (median, least, p10, p90) in zip(sides, spread):
            row[f"{side}_{direction}_ms"] = median
            row[f"{side}_{direction}_spread_ms"] = [least, p10, p90]
    row["fla_refusal_skipped"] = Fla.refusal_skipped
    ours.close()
    return row


def print_times(rows, options):
    print(f"\n{torch.cuda.get_device_name()}; bf16, gate {options.gate}, beta uniform(0, {options.beta:g}); "
          f"ms, median of {options.repeat}, calls alternating; extra: MB of workspace, saved, o and gradients")
    print(f"{'':11} {'forward':^35} {'backward':^35} {'extra MB':^15} {'first call s':^14} {'repeat':>7}")
    head = f" {'ours':>8} {'FLA':>8} {'ratio':>7} {'floor':>8} "
    print(f"{'workload':11}{head} {head} {'ours':>7} {'FLA':>7}  {'ours':>6} {'FLA':>6} {'q, k ms':>8}")
    for r in rows:
        line = f"{r['workload']:11}"
        for direction in ("forward", "backward"):
            ours, fla = r[f"ours_{direction}_ms"], r.get(f"fla_{direction}_ms", math.nan)
            line += f" {ours:8.3f} {fla:8.3f} {fla / ours:7.2f} {r[f'floor_{direction}_ms']:8.3f}  "
        line += f"{r['ours_extra_mb']:7.0f} {r.get('fla_extra_mb', math.nan):7.0f}"
        line += f"  {r['ours_start_s']:6.2f} {r.get('fla_start_s', math.nan):6.1f} {r.get('fla_repeat_ms', 0):8.3f}"
        print(line)
    if any(r["fla_refusal_skipped"] for r in rows):
        print("FLA's backward ran though FLA refuses it with this Triton: its time, with wrong gradients.")


# ---- accuracy

def recurrence(q, k, v, g, beta, n):
    """The definition, in the inputs' precision."""
    B, T, H, K = q.shape
    S = torch.zeros(B, H, K, v.shape[-1], dtype=q.dtype, device=q.device)
    outputs, decay = [], torch.exp(g)
    for t in range(T):
        S = S * decay[:, t, :, None, None]
        for i in range(t * n, t * n + n):
            u = beta[:, i, :, None] * (v[:, i] - torch.einsum("bhk,bhkv->bhv", k[:, i], S))
            S = S + k[:, i, :, :, None] * u[:, :, None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S) / math.sqrt(K))
    return torch.stack(outputs, dim=1)


def relative(x, reference):
    return (torch.linalg.norm(x.double() - reference) / torch.linalg.norm(reference)).item()


def compare(library, context, decay, options):
    shape = (1, 1024, 2, 2, 128, 128, 2)
    inputs = make_inputs(shape, decay, 2.0, seed=1)
    exact = [x.double().requires_grad_() for x in inputs[:5]]
    o = recurrence(*exact, shape[6])
    wanted = [o.detach(), *torch.autograd.grad(o, exact, inputs[5].double())]
    ours = Ours(library, context, shape, inputs, options.config)
    ours.forward_saving()
    ours.backward()
    torch.cuda.synchronize()
    names = ("o",) + GRADIENTS
    row = {"decay": decay, "ours": dict(zip(names, map(relative, [ours.o, *ours.gradients], wanted)))}
    ours.close()
    if not options.skip_fla:
        fla = Fla(shape, inputs)
        fla.forward_saving()
        fla.backward()
        row["fla"] = {"o": relative(fla.o.detach(), wanted[0])}
        if not Fla.refusal_skipped:
            row["fla"].update(zip(GRADIENTS, map(relative, fla.gradients, wanted[1:])))
    return row


def print_accuracy(rows):
    print("\nRelative Frobenius errors against a float64 recurrence; T1024 H2 K128 V128 n2, beta uniform(0, 2), "
          "g = a log(u)")
    names = ("o",) + GRADIENTS
    print(f"{'a':>6} {'':5}" + "".join(f"{name:>10}" for name in names))
    for row in rows:
        for side in ("ours", "fla"):
            if side in row:
                cells = [f"{row[side][name]:10.1e}" if name in row[side] else f"{'refused':>10}" for name in names]
                print(f"{row['decay']:6} {side:5}" + "".join(cells))


def read_options():
    parser = argparse.ArgumentParser(description="libgdp beside FLA on one GPU")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--library", help="libgdp.so; build/libgdp.so")
    parser.add_argument("--gate", choices=("strong", "weak"), default="strong", help="-0.1 uniform(0, 1); a 50th of it")
    parser.add_argument("--beta", type=float, default=1.0, help="beta is uniform(0, BETA)")
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--config", default="", help='"chunk=32 ...", for ours')
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s, for the floor")
    parser.add_argument("--matrix", type=float, default=790.0, help="TFLOP/s, for the floor")
    parser.add_argument("--skip-fla", action="store_true", help="ours alone")
    parser.add_argument("--skip-times", action="store_true")
    parser.add_argument("--skip-accuracy", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    options = parser.parse_args()
    for name in options.names:
        if name not in WORKLOADS:
            parser.error(f"'{name}' is no workload; accepted are {', '.join(WORKLOADS)}")
    return options


def main():
    options = read_options()
    if not torch.cuda.is_available():
        leave("PyTorch finds no GPU", 3)
    try:
        if not options.skip_fla:
            import fla  # noqa: F401
    except ImportError as error:
        leave(f"FLA cannot be imported ({error}); --skip-fla times ours alone", 3)
    gdp.check_structs()
    torch.cuda.init()
    library = gdp.Library(options.library)
    context = library.context(gdp.CUDA, torch.cuda.current_device())
    accuracy = [] if options.skip_accuracy else [compare(library, context, a, options) for a in (0.1, 0.002)]
    if accuracy:
        print_accuracy(accuracy)
    rows = []
    for name in [] if options.skip_times else options.names or list(WORKLOADS):
        print(f"{name} ...", file=sys.stderr)
        rows.append(measure(name, library, context, options))
        torch.cuda.empty_cache()
    if rows:
        print_times(rows, options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "libgdp": library.version(),
                       "times": rows, "accuracy": accuracy}, file, indent=1)
    library.c.gdp_context_destroy(context)


if __name__ == "__main__":
    try:
        main()
    except gdp.Error as error:
        leave(error, 1)
