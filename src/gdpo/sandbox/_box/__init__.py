"""Code that runs inside the sandbox, where only the standard library and these files exist.

There are three kinds of processes. The server starts the other two, and reads neither programs nor
tests. A program process runs the untrusted code. The grader runs the tests. It accepts only plain
data from the program, and builds exact builtin types from it.
"""
