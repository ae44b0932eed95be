"""libgdp by ctypes: what peer_fla.py needs of runtime/gdp.h, and no more.

    python3 bench/gdp_ctypes.py [PATH/OF/libgdp.so]

compares the structs here with those of the header (wants a C compiler) and asks the library for its version.
"""
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

NONE, F32, BF16, F16 = 0, 1, 2, 3  # gdp_dtype
CUDA = 2  # gdp_target
PLAN_BACKWARD = 1


class Problem(Structure):
    c_name = "gdp_problem"
    _fields_ = [(name, c_int64) for name in
                ("batch", "tokens", "sequences", "heads", "value_heads", "dim_k", "dim_v", "num_householder")]
    _fields_ += [(name, c_int) for name in ("dtype", "gate_dtype", "beta_dtype", "index_dtype")]


class Config(Structure):
    c_name = "gdp_config"
    _fields_ = [("target", c_int)]
    _fields_ += [(name, c_int64) for name in ("arch", "chunk", "segment", "block_v", "stages", "wave")]


class ContextOptions(Structure):
    c_name = "gdp_context_options"
    _fields_ = [("size", c_size_t), ("target", c_int), ("threads", c_int), ("device", c_int),
                ("cache_dir", c_char_p), ("template_dir", c_char_p), ("compiler", c_char_p),
                ("check_values", c_int), ("allocate", c_void_p), ("release", c_void_p),
                ("allocator_user", c_void_p), ("log", c_void_p), ("log_user", c_void_p)]


class Tensor(Structure):
    c_name = "gdp_tensor"
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("rank", c_int), ("shape", c_int64 * 4),
                ("stride", c_int64 * 4)]


class Inputs(Structure):
    c_name = "gdp_inputs"
    _fields_ = [(name, Tensor) for name in ("q", "k", "v", "g", "beta", "cu_seqlens")]
    _fields_ += [("num_householder", c_int), ("scale", c_float), ("initial_state", Tensor)]


class Outputs(Structure):
    c_name = "gdp_outputs"
    _fields_ = [("o", Tensor), ("final_state", Tensor)]


class OutputGradients(Structure):
    c_name = "gdp_output_gradients"
    _fields_ = [("d_o", Tensor), ("d_final_state", Tensor)]


class InputGradients(Structure):
    c_name = "gdp_input_gradients"
    _fields_ = [(name, Tensor) for name in ("dq", "dk", "dv", "dg", "dbeta", "d_initial_state")]


class SavedContext(Structure):
    c_name = "gdp_saved_context"
    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("preceding_rank_start", c_int),
                ("following_rank_stop", c_int)]


class Execution(Structure):
    c_name = "gdp_execution"
    _fields_ = [("workspace", c_void_p), ("workspace_bytes", c_size_t), ("stream", c_void_p)]


class PlanSizes(Structure):
    c_name = "gdp_plan_sizes"
    _fields_ = [("workspace", c_size_t), ("saved", c_size_t), ("summary", c_size_t)]


STRUCTS = [Problem, Config, ContextOptions, Tensor, Inputs, Outputs, OutputGradients, InputGradients,
           SavedContext, Execution, PlanSizes]


class Error(Exception):
    pass


def check_structs():
    """True: sizes and offsets are those of the header. None: there is no C compiler to ask."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    header = os.path.join(ROOT, "runtime", "gdp.h")
    if not compiler or not os.path.exists(header):
        return None
    lines, wanted = [], []
    for struct in STRUCTS:
        lines.append(f'printf("%zu\\n", sizeof({struct.c_name}));')
        wanted.append((struct.c_name, ctypes.sizeof(struct)))
        for field in struct._fields_:
            lines.append(f'printf("%zu\\n", offsetof({struct.c_name}, {field[0]}));')
            wanted.append((f"{struct.c_name}.{field[0]}", getattr(struct, field[0]).offset))
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "sizes.c"), os.path.join(folder, "sizes")
        with open(source, "w", encoding="ascii") as file:
            file.write('#include <stddef.h>\n#include <stdio.h>\n#include "gdp.h"\nint main(void)\n{\n'
                       + "\n".join(lines) + "\n    return 0;\n}\n")
        subprocess.run([compiler, "-I", os.path.dirname(header), "-o", program, source], check=True)
        text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    for (name, here), there in zip(wanted, map(int, text.split()), strict=True):
        if here != there:
            raise Error(f"{name}: {here} bytes here and {there} in gdp.h")
    return True


def load(path=None):
    """The library with its functions declared."""
    path = path or os.environ.get("GDP_LIBRARY") or os.path.join(ROOT, "build", "libgdp.so")
    library = ctypes.CDLL(path)
    functions = {
        "gdp_version": (c_char_p, []),
        "gdp_last_error": (c_char_p, []),
        "gdp_context_create": (c_int, [POINTER(ContextOptions), POINTER(c_void_p)]),
        "gdp_context_destroy": (None, [c_void_p]),
        "gdp_plan_create": (c_int, [c_void_p, POINTER(Problem), POINTER(Config), c_uint, POINTER(c_void_p)]),
        "gdp_plan_destroy": (None, [c_void_p]),
        "gdp_plan_get_sizes": (c_int, [c_void_p, POINTER(PlanSizes)]),
        "gdp_plan_get_config": (c_int, [c_void_p, POINTER(Config)]),
        "gdp_config_parse": (c_int, [c_char_p, POINTER(Config)]),
        "gdp_config_print": (c_int, [POINTER(Config), c_char_p, c_size_t]),
        "gdp_forward": (c_int, [c_void_p, POINTER(Inputs), POINTER(Outputs), POINTER(SavedContext),
                                POINTER(Execution)]),
        "gdp_backward": (c_int, [c_void_p, POINTER(Inputs), POINTER(OutputGradients), POINTER(SavedContext),
                                 POINTER(InputGradients), POINTER(Execution)]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Library:
    """Calls that raise Error with the library's sentence."""

    def __init__(self, path=None):
        self.c = load(path)

    def check(self, status):
        if status != 0:
            raise Error(self.c.gdp_last_error().decode())

    def version(self):
        return self.c.gdp_version().decode()

    def context(self, target=CUDA, device=None):
        """device: an ordinal; None: the library's choice."""
        options = ContextOptions(size=ctypes.sizeof(ContextOptions), target=target,
                                 device=0 if device is None else device + 1)
        context = c_void_p()
        self.check(self.c.gdp_context_create(byref(options), byref(context)))
        return context

    def config(self, text):
        config = Config()
        if text:
            self.check(self.c.gdp_config_parse(text.encode(), byref(config)))
        return config

    def plan(self, context, problem, config, flags):
        plan = c_void_p()
        self.check(self.c.gdp_plan_create(context, byref(problem), byref(config), flags, byref(plan)))
        return plan

    def sizes(self, plan):
        sizes = PlanSizes()
        self.check(self.c.gdp_plan_get_sizes(plan, byref(sizes)))
        return sizes

    def config_text(self, plan):
        config, text = Config(), ctypes.create_string_buffer(512)
        self.check(self.c.gdp_plan_get_config(plan, byref(config)))
        self.check(self.c.gdp_config_print(byref(config), text, 512))
        return text.value.decode()


def main():
    print("structs:", "as in gdp.h" if check_structs() else "not compared, no C compiler")
    print("libgdp", Library(sys.argv[1] if len(sys.argv) > 1 else None).version())


if __name__ == "__main__":
    main()
