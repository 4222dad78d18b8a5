"""The decoder in C for CPUs: a whole forward pass in one call.

`native.h` is the whole interface. `build.py` makes the extension module from it; it is run when the
package is installed.
"""
