"""Notes which steps run, in a file that is no input of any step."""

import os


def ran(step: str) -> None:
    file = os.open(os.environ["WHAT_RAN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{step}\n".encode())
    os.close(file)
