"""The engine `vllm`: what `dflash2 serve --engine vllm` and the tests talk to."""

from pathlib import Path

from dflash2_core.engines import Command, EngineOptions, EngineReport, Route
from dflash2_core.errors import Dflash2Error
from dflash2_vllm.arguments import server_command
from dflash2_vllm.hooks import AS_EXPECTED, TESTED
from dflash2_vllm.interpreter import find_interpreter, installed_in, look_inside, require_plugin
from dflash2_vllm.pair import check_pair, open_target
from dflash2_vllm.server import VllmServer

NOTES = (
    "vLLM refuses min_p and logit_bias in requests as long as it drafts",
    "on a CPU, where other programs use the cores too, set OMP_NUM_THREADS and VLLM_CPU_OMP_THREADS_BIND=nobind: vLLM crawls "
    "otherwise",
)


class Vllm:
    """See `dflash2_core.engines.Engine`. program: vLLM's own Python, else see `find_interpreter`."""

    name = "vllm"
    notes = NOTES

    def __init__(self, program: Path | None = None) -> None:
        self._setting = program

    @property
    def interpreter(self) -> Path:
        """The Python that vLLM is installed in."""
        return find_interpreter(self._setting)

    def probe(self) -> EngineReport:
        """Imports vLLM in its own Python and looks at every hook: some ten seconds."""
        program, version, problems = None, None, []
        hooks: dict[str, str] = {}
        route: Route = "none"
        try:
            program = self.interpreter
            found = installed_in(program)
            version = found.vllm
            require_plugin(program, found)
            inside = look_inside(program)
            hooks = inside["hooks"]
            route = "native" if inside["native"] else "plugin"
        except Dflash2Error as problem:
            problems.append(str(problem))
        if route == "plugin":
            problems += [f"vLLM's {place} {state}" for place, state in hooks.items() if state != AS_EXPECTED]
        return EngineReport(
            name=self.name,
            program=program,
            version=version,
            tested=version is not None and version.startswith(TESTED),
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
        found = installed_in(program)
        if drafter is None:
            open_target(target)
            return server_command(program, target, None, options)
        require_plugin(program, found)
        return server_command(program, target, (drafter, check_pair(target, drafter)), options)

    def start(self, target: Path, drafter: Path | None, options: EngineOptions) -> VllmServer:
        """`command`, run, until it answers; EngineError with the end of its log where it does not."""
        return VllmServer(self.command(target, drafter, options), options, drafts=drafter is not None)

    def attach(self, url: str, options: EngineOptions, *, drafts: bool) -> VllmServer:
        """A server that runs already."""
        return VllmServer(url, options, drafts=drafts)
