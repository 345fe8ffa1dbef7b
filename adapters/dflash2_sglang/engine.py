"""The engine `sglang`: what `dflash2 serve --engine sglang` and the tests talk to."""

from pathlib import Path

from dflash2_core.engines import Command, EngineOptions, EngineReport, Route
from dflash2_core.errors import Dflash2Error
from dflash2_sglang.command import server_command
from dflash2_sglang.hooks import AS_EXPECTED, TESTED
from dflash2_sglang.interpreter import find_interpreter, installed_in, look_inside, require_plugin
from dflash2_sglang.pair import check_pair
from dflash2_sglang.server import SglangServer

NOTES = (
    "on a CPU the text is that of plain SGLang, greedily token by token and sampled in distribution; requests with a "
    "custom_logit_processor or return_sampling_mask are refused, others are not",
    "on a CPU a request's seed has no effect, as in SGLang without a drafter, which honours seeds under "
    "--enable-deterministic-inference alone and has that for no attention backend of a CPU",
    "on a CPU that other programs use too, set OMP_NUM_THREADS: SGLang crawls otherwise",
)


class Sglang:
    """See `dflash2_core.engines.Engine`. program: SGLang's own Python, else see `find_interpreter`."""

    name = "sglang"
    notes = NOTES

    def __init__(self, program: Path | None = None) -> None:
        self._setting = program

    @property
    def interpreter(self) -> Path:
        """The Python that SGLang is installed in."""
        return find_interpreter(self._setting)

    def probe(self) -> EngineReport:
        """On a CPU, imports SGLang in its own Python and looks at every hook: half a minute."""
        program, version, problems = None, None, []
        hooks: dict[str, str] = {}
        route: Route = "none"
        try:
            program = self.interpreter
            found = installed_in(program)
            version = found.sglang
            route = "native"
            if found.on_cpu:
                route = "plugin"
                require_plugin(program, found)
                hooks = look_inside(program)["hooks"]
        except Dflash2Error as problem:
            problems.append(str(problem))
        problems += [f"SGLang's {place} {state}" for place, state in hooks.items() if state != AS_EXPECTED]
        return EngineReport(
            name=self.name,
            program=program,
            version=version,
            tested=route == "plugin" and version in TESTED,
            route="none" if problems else route,
            hooks=hooks,
            notes=self.notes,
            problems=tuple(problems),
        )

    def command(self, target: Path, drafter: Path | None, options: EngineOptions) -> Command:
        """Checks the pair and says what would be run.

        target   the folder of a Hugging Face checkpoint
        drafter  the folder of a checkpoint made for it; None: the target alone
        """
        program = self.interpreter
        pair = None if drafter is None else (drafter, check_pair(target, drafter))
        found = installed_in(program)
        if pair is not None and found.on_cpu:
            require_plugin(program, found)
        return server_command(program, target, pair, options, on_cpu=found.on_cpu)

    def start(self, target: Path, drafter: Path | None, options: EngineOptions) -> SglangServer:
        """`command`, run, until it answers; EngineError with the end of its log where it does not."""
        return SglangServer(self.command(target, drafter, options), options)

    def attach(self, url: str, options: EngineOptions, *, drafts: bool) -> SglangServer:
        """A server that runs already."""
        return SglangServer(url, options)
