"""The `openai` client against any engine's server, run in an environment that has it: `python openai_driver.py BASE_URL`.

Prints one JSON object: what each way of asking gave. `drafted` and `accepted` are told by llama.cpp alone, elsewhere None.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

QUESTIONS = [f"What is {a} + {b}?" for a, b in ((17, 25), (3, 4), (120, 7), (58, 31), (9, 9), (44, 12), (6, 71), (250, 250))]
TEXT = "def read_lines(path):\n"


def main(base_url: str) -> None:
    client = OpenAI(base_url=base_url, api_key="none", max_retries=0)
    models = [model.id for model in client.models.list().data]

    def chat(question: str, **options: object) -> object:
        messages = [{"role": "user", "content": question}]
        return client.chat.completions.create(model=models[0], messages=messages, temperature=0, max_tokens=48, **options)

    def complete(**options: object) -> object:
        return client.completions.create(model=models[0], prompt=TEXT, temperature=0, max_tokens=64, **options)

    def asked(question: str) -> dict[str, object]:
        answer = chat(question)
        usage, timings = answer.usage, (answer.model_extra or {}).get("timings", {})
        return {
            "text": answer.choices[0].message.content,
            "finish_reason": answer.choices[0].finish_reason,
            "completion_tokens": usage.completion_tokens,
            "drafted": timings.get("draft_n"),
            "accepted": timings.get("draft_n_accepted"),
        }

    whole = complete()
    stop = whole.choices[0].text[20:26]
    stopped = complete(stop=[stop])
    chunks = [chunk.choices[0].text for chunk in complete(stream=True) if chunk.choices]
    stopped_chunks = [chunk.choices[0].text for chunk in complete(stream=True, stop=[stop]) if chunk.choices]
    deltas = [chunk.choices[0].delta.content or "" for chunk in chat(QUESTIONS[0], stream=True) if chunk.choices]
    sampled = client.completions.create(model=models[0], prompt=TEXT, temperature=0.8, seed=11, max_tokens=48)
    with ThreadPoolExecutor(len(QUESTIONS)) as threads:
        concurrent = list(threads.map(asked, QUESTIONS))
    print(
        json.dumps(
            {
                "models": len(models),
                "text": whole.choices[0].text,
                "completion_tokens": whole.usage.completion_tokens,
                "streamed": "".join(chunks),
                "num_chunks": len(chunks),
                "stop": stop,
                "stopped": stopped.choices[0].text,
                "stopped_reason": stopped.choices[0].finish_reason,
                "stopped_streamed": "".join(stopped_chunks),
                "sampled": sampled.choices[0].text,
                "chat_streamed": "".join(deltas),
                "alone": [asked(question) for question in QUESTIONS],
                "concurrent": concurrent,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
