"""Openings of user turns by class; the target continues them, so that the drawn questions cover what users ask."""

from __future__ import annotations

OPENINGS: dict[str, tuple[str, ...]] = {
    "code": (
        "Write a Python function that",
        "Write a Python class for",
        "Write a function in JavaScript that",
        "Here is a function:\n\n```python\ndef",
        "Write a SQL query that",
        "Explain this code:\n\n```python\n",
        "Write a unit test for",
        "Write a shell script that",
        "How do I sort a",
        "Fix the bug in this code:\n\n```python\n",
    ),
    "chat": (
        "What is the",
        "How do I",
        "Why does",
        "Can you explain",
        "Who was",
        "What should I",
        "Give me advice on",
        "What is the difference between",
        "I have a question about",
        "Calculate",
    ),
    "prose": (
        "Tell me a story about",
        "Write a short story about",
        "Write an essay about",
        "Describe a scene in which",
        "Write a poem about",
        "Write a letter to",
        "Write a blog post about",
        "Continue this story:",
    ),
    "edit": (
        "Rewrite the following text",
        "Correct the spelling in this text:",
        "Make this sentence more formal:",
        "Translate this to simple English:",
        "Rename the variable in this function. Give the whole function.\n\n```python\ndef",
        "Add type hints to this function:\n\n```python\ndef",
        "Add comments to this code:\n\n```python\n",
        "Change the second item in this list:\n\n1.",
        "Summarize this text:",
        "Replace every",
    ),
    "list": (
        "List five",
        "Give me a list of",
        "Give me ten ideas for",
        "Make a table of",
        "What are the steps to",
        "Make a plan for",
    ),
    "json": (
        'You can call these tools: [{"name": "',
        "Return a JSON object with",
        "Convert this to JSON: name:",
        "Extract the names and dates as JSON from this text:",
        'Answer with a JSON tool call such as {"name": "get_weather", "arguments": {"city": "Paris"}}.',
        "Write a CSV file with",
        "Write a YAML configuration for",
    ),
}

FREE_SHARE = 0.3
"""Share of user turns without an opening."""

CLASS_WEIGHTS: dict[str, float] = {"code": 0.27, "chat": 0.2, "prose": 0.17, "edit": 0.14, "list": 0.1, "json": 0.12}
