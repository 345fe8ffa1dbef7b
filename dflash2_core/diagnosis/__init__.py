"""What is wrong, or will be, with the engines of this machine and with a pair: what `dflash2 doctor` shows.

finding.py        Finding: a level, a subject, a reason, a mend
facts.py          what is known of a target, a drafter, an engine
reading.py        folders as facts          gguf_files.py   GGUFs as facts
examining.py      diagnose: the look itself  document.py      the same for --json

One subject a file, each a pure function from facts to findings:
engines.py        is it there, does it run, was it tested, does it take the pair
variables.py      the environment           switches.py     arguments that make it lossy    (arguments.py reads them)
blocks.py         the block in each engine's words, and what their defaults cut
greedy_drafts.py  argmax above temperature 0                dropped_keys.py keys that an engine does not read
verification.py   what an engine's own verification passes over
checkpoints.py    files, weights, manifest  fit.py          widths, vocabulary, taps, mask
tokenizers.py     by content                chat.py         chat templates
contexts.py       context lengths, windows  dtypes.py       types of weights
licences.py       may one use it            memory.py       what the drafter adds, in bytes
"""

from dflash2_core.diagnosis.examining import Asked, Diagnosis, diagnose
from dflash2_core.diagnosis.finding import LEVELS, Finding, Level

__all__ = ["LEVELS", "Asked", "Diagnosis", "Finding", "Level", "diagnose"]
