/* The streams of the Lua inside the library.
 *
 * Distributions compile liblua.a for programs, not for shared libraries; what forbids to link it into
 * one is that it takes the address of stdin, stdout and stderr. The build renames those to
 * the variables here. They stay NULL: the library opens no function of Lua that reads or prints. */
#include <stdio.h>

extern FILE *gdpi_lua_stdin, *gdpi_lua_stdout, *gdpi_lua_stderr;
FILE *gdpi_lua_stdin, *gdpi_lua_stdout, *gdpi_lua_stderr;
