"""What an engine's log says of its end.

An engine of several processes ends with what an outer process saw of an inner one's death; why that one died stands above.
"""

import re

PREFIX = re.compile(r"^(?:\([^()]*\) )?(?:[A-Z]+ [\d-]+ [\d:.,]+ )?(?:\[[^\[\]]*\] )?")
"""Of a line that a process logs: which process, level and time, and where in its source, each in vLLM's and SGLang's way."""
RAISED = re.compile(r"^(?P<name>(?:\w+\.)*[A-Z]\w*(?:Error|Exception))(?:: (?P<message>.*))?$")
FROM_AFAR = re.compile(r"root cause|(?:logs?|trace|output|errors?) above|\(above\)", re.IGNORECASE)
"""What the message of an outer process's exception says."""
CONSEQUENCES = {"EOFError", "BrokenPipeError", "ConnectionResetError", "ConnectionRefusedError"}
"""Another process was gone."""
LAST_LINES, MESSAGE_LINES, LONGEST = 3, 3, 600


def told(log: str) -> str:
    """The exception that ended it, if its last lines do not hold it anyway, and the last lines; as the end of a sentence."""
    last = log.strip().splitlines()[-LAST_LINES:]
    end = f"ends with: {' | '.join(last) or 'nothing'}"
    cause = cause_in(log)
    if cause is None or any(cause.partition("\n")[0] in line for line in last):
        return end
    return f"says: {cause[:LONGEST]} | and {end}"


def cause_in(log: str) -> str | None:
    """The last exception that a traceback in the log ends with and that does not only tell of another's; None without one.

    Lines of the message that are indented belong to it, three in all.
    """
    lines = [PREFIX.sub("", line) for line in log.splitlines()]
    for at in reversed(range(len(lines))):
        found = RAISED.match(lines[at])
        if found is None or found["name"].rpartition(".")[2] in CONSEQUENCES or FROM_AFAR.search(found["message"] or ""):
            continue
        end = at + 1
        while end < min(len(lines), at + MESSAGE_LINES) and lines[end].startswith("  "):
            end += 1
        return "\n".join(lines[at:end])
    return None
