"""Contains the code that runs inside the sandbox, where only the standard library is available.

There are three kinds of processes. The server starts the grader and the program processes, and
interprets neither programs nor tests. A program process runs the untrusted code. The grader runs
the tests. The grader accepts only plain data from the program, and builds exact builtin types from
this data.
"""
