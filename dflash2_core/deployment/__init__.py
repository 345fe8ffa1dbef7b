"""A pair in the words of an engine: the exact command, or the exact file.

recipe.py         Recipe: what is to be run or written, in which count, checked against what, run here or only read
serving.py        vLLM, SGLang, llama.cpp: the command of the adapter where the engine is installed, else a plain one
tensorrt_llm.py   a YAML file for trtllm-serve
ollama.py         a Modelfile
omlx.py           settings of oMLX
splash.py         a command for Splash
"""

from dflash2_core.deployment.ollama import ollama
from dflash2_core.deployment.omlx import omlx
from dflash2_core.deployment.recipe import Pair, Recipe, Write
from dflash2_core.deployment.serving import llama_cpp, sglang, vllm
from dflash2_core.deployment.splash import splash
from dflash2_core.deployment.tensorrt_llm import tensorrt_llm

RECIPES: dict[str, Write] = {
    "vllm": vllm,
    "sglang": sglang,
    "llama-cpp": llama_cpp,
    "tensorrt-llm": tensorrt_llm,
    "ollama": ollama,
    "omlx": omlx,
    "splash": splash,
}

__all__ = ["RECIPES", "Pair", "Recipe"]
