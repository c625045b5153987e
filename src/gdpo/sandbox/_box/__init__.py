"""What runs inside the sandbox: nothing but the standard library and these files is there.

Three kinds of processes. The server starts the other two and reads neither programs nor tests. The
program runs what nobody trusts. The grader runs the tests, and takes nothing from the program but
plain data, from which it builds exact builtin types.
"""
