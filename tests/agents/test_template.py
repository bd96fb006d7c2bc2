"""Chat templates of strangers: their text is that of `transformers`; what never ends or fills the memory is stopped."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.agents import template as module
from earl.agents.chat import Chat
from earl.agents.template import Template, TemplateError
from earl.errors import EarlError

pytestmark = pytest.mark.cold

USER = [{"role": "user", "content": "X 12O\n456 <b>é</b>"}]
LONGER = [
    {"role": "system", "content": "Play. "},
    *USER,
    {"role": "assistant", "content": "<think>\nhm\n</think>\n5"},
    {"role": "user", "content": " 7 "},
]
LOOP = "{% for a in range(99999) %}" * 5 + "BODY" + "{% endfor %}" * 5
DOUBLED = (
    "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set n.s = DOUBLE %}{% endfor %}{{ n.s|length }}"
)
NESTED = "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ USE }}"
ATTACKS = {
    "loops that say nothing": LOOP.replace("BODY", ""),
    "loops that talk": LOOP.replace("BODY", "xxxxxxxxxx"),
    "a loop with one set": LOOP.replace("BODY", "{% set x = a %}"),
    "text doubled by +": DOUBLED.replace("DOUBLE", "n.s + n.s"),
    "text doubled by ~": DOUBLED.replace("DOUBLE", "n.s ~ n.s"),
    "text doubled by *": DOUBLED.replace("DOUBLE", "n.s * 2"),
    "text doubled by %": DOUBLED.replace("DOUBLE", "'%s%s' % (n.s, n.s)"),
    "text doubled by format": DOUBLED.replace("DOUBLE", "'{0}{0}'.format(n.s)"),
    "text doubled by the filter format": DOUBLED.replace("DOUBLE", "'%s%s'|format(n.s, n.s)"),
    "text doubled by replace": DOUBLED.replace("DOUBLE", "n.s.replace('x', 'xx')"),
    "text doubled by the filter replace": DOUBLED.replace("DOUBLE", "n.s|replace('x', 'xx')"),
    "text doubled by join": DOUBLED.replace("DOUBLE", "[n.s, n.s]|join(n.s)"),
    "text squared by translate": "{% set s = 'x' * 99999 %}{{ s.translate({120: s})|length }}",
    "text squared by replace": "{% set s = 'x' * 999999 %}{{ s.replace('x', s)|length }}",
    "a long text by *": "{{ 'x' * 10**10 }}",
    "a long list by *": "{{ ([1] * 10**10)|length }}",
    "a huge power": "{{ 10 ** (10 ** 10) }}",
    "a wide %": "{{ '%10000000000d' % 1 }}",
    "a wide format": "{{ '{:>10000000000}'.format(1) }}",
    "a wide center": "{{ 'x'|center(10**10) }}",
    "a wide ljust": "{{ 'x'.ljust(10**10) }}",
    "a wide zfill": "{{ 'x'.zfill(10**10) }}",
    "a wide expandtabs": "{{ '\\t'.expandtabs(10**9) }}",
    "a wide indent": "{{ 'x\\nx'|indent(10**10) }}",
    "a wide tojson": "{{ [1]|tojson(indent=10**10) }}",
    "many bytes": "{{ (1).to_bytes(10**10, 'big')|length }}",
    "a batch filled up": "{{ [1]|batch(10**10, 'x')|list }}",
    "slices without end": "{{ [1]|slice(10**10)|list }}",
    "much latin": "{{ lipsum(10**8) }}",
    "lists within lists said": NESTED.replace("USE", "n.s"),
    "lists within lists as JSON": NESTED.replace("USE", "n.s|tojson"),
    "lists within lists compared": (
        "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}"
        "{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}"
    ),
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(90) }}"
    ),
    "a loop that calls itself": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "a sum of lists": "{{ ([[1] * 99999] * 99999)|sum(start=[])|length }}",
    "a range beyond the sandbox": "{% for i in range(10**9) %}{% endfor %}",
    "wrapped by the word": "{{ ('x ' * 9999999)|wordwrap(1) }}",
    "a product of sequences": "{{ ('x' * 99999)|list|map('list')|list|tojson * 999 }}",
    "parentheses too deep": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "blocks too deep": "{% if 1 %}" * 5_000 + "{% endif %}" * 5_000,
    "additions too many": "{{ 1" + "+1" * 200_000 + " }}",
    "a text that is too long": "{{ 'x' * 1048577 }}",
    "a program that is too long": "x" * 1048577,
    "raise_exception": "{{ raise_exception('no') }}",
    "an undefined name": "{{ nothing.at.all }}",
    "another file": "{% include '/etc/passwd' %}",
    "what Python has below": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a format that reaches below": "{{ '{0.__class__.__mro__}'.format(1) }}{{ nothing.x }}",
    "no Jinja": "{% for",
}


FAST = (
    "loops that say nothing",
    "text doubled by ~",
    "text squared by replace",
    "a wide format",
    "lists within lists said",
)
EACH = [pytest.param(text, id=name, marks=[] if name in FAST else pytest.mark.slow) for name, text in ATTACKS.items()]


@pytest.mark.parametrize("source", EACH)
def test_a_template_is_stopped(source, monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(TemplateError):
        print(Template(source, {}).render(USER)[:99])
    assert time.monotonic() - began < 60  # a fifth of a second of computing, on a machine that does other things too


@pytest.mark.slow
def test_a_template_that_never_ends_is_an_error_that_names_model_limit_and_cure(chatml):
    tokenizer = chatml()
    tokenizer.chat_template, tokenizer.name_or_path = ATTACKS["loops that say nothing"], "somebody/model"
    with pytest.raises(
        EarlError, match="chat template of somebody/model cannot be used: it takes more than 1 s; mend it, or choose"
    ):
        Chat(tokenizer).opening("", "7")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{{ 'x' * 10**10 }}", "more than 256 MiB"),
        ("{{ 'x' * 2000000 }}", "over 1048576 characters"),
        ("{{ messages[-1].content }}", "leaves out what the model replied"),
        (7, "is 7, not a text"),
        (None, "template"),
        ({"tool_use": "x"}, "no default"),
    ],
)
def test_what_is_wrong_with_a_template_is_said(chatml, source, reason):
    tokenizer = chatml()
    tokenizer.chat_template = source
    with pytest.raises(EarlError, match=reason):
        Chat(tokenizer).reply("user", "7", True)


def shipped():
    """The chat templates that installed packages bring along."""
    found = []
    for package in ("vllm", "transformers", "mistral_common"):
        spec = importlib.util.find_spec(package)
        places = spec.submodule_search_locations if spec else []
        found += [path for place in places or [] for path in Path(place).rglob("*.jinja") if "chat" in str(path)]
    return sorted(found)


EXTRAS = {
    "generation": (
        "{% for m in messages %}{% set x = 1 %}{% generation %}{% set x = 2 %}{{ m.content }}{{ x }}{% endgeneration %}"
        "{{ x }}{% endfor %}"
    ),
    "json": "{{ messages | tojson(indent=2) }}{{ tools is none }}{{ documents }}",
    "breaks": "{%- for m in messages -%}\n  {% if loop.index > 1 %}{% break %}{% endif %}\n{{ m.role }}\n{%- endfor %}",
    "names": "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ add_generation_prompt }}",
    "spaces": "  {% if true %}\n    {{ messages[0]['content'] | trim }}\n  {% endif %}\n\n",
    "year": "{{ strftime_now('%Y') }}",
    "space": "{% set n = namespace(f=false) %}{% for m in messages %}{% if loop.last %}{% set n.f = m %}{% endif %}"
    "{% endfor %}{{ n.f.content.split('</think>')[-1].lstrip('\n') }}{{ n.f.get('tool_calls') }}",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "trimming", "forgetting", *EXTRAS, *shipped()], ids=str)
def test_the_text_is_that_of_transformers(chatml, kind):
    tokenizer = chatml(kind if kind in ("plain", "trimming", "forgetting") else "plain")
    if kind in EXTRAS or isinstance(kind, Path):
        tokenizer.chat_template = EXTRAS.get(kind) or kind.read_text(encoding="utf-8")
    for messages in (USER, LONGER, LONGER[1:]):
        ours, theirs = [], []
        for texts, render in (
            (ours, lambda m: Template(tokenizer.get_chat_template(), tokenizer.special_tokens_map).render(m)),
            (theirs, lambda m: tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True)),
        ):
            try:
                texts.append(render(messages))
            except Exception:
                texts.append("refused")
        assert ours == theirs
        assert ours != ["refused"] or isinstance(kind, Path)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "{# not earl's own, so in a process #}"])
def test_any_content_is_rendered_as_transformers_does(characters, before):
    made = Template(before + characters.get_chat_template(), {})

    @given(st.text(max_size=60), st.text(max_size=60))
    def check(one, other):
        messages = [{"role": "user", "content": one}, {"role": "assistant", "content": other}]
        theirs = characters.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert made.render(messages) == theirs

    check()


def test_the_template_of_earls_own_models_needs_no_process(characters, monkeypatch):
    monkeypatch.setattr(module, "_start", lambda: pytest.fail("a process was started"))
    made = Template(characters.get_chat_template(), {"messages": "a special token of that name"})
    assert made.render(USER) == f"<|user|>{USER[0]['content']}<|end|><|assistant|>"
    with pytest.raises(TemplateError, match="over 1048576 characters"):
        made.render([{"role": "user", "content": "x" * (1 << 20)}])


def test_a_process_that_somebody_ended_is_started_again():
    made = Template("{{ messages[0].content }}", {})
    assert made.render(USER) == USER[0]["content"]
    made._process.kill()
    made._process.wait()
    assert made.render(USER) == USER[0]["content"]


def test_a_signal_that_is_meant_for_the_parent_does_not_end_it():
    made = Template("{{ messages[0].content }}", {})
    made.render(USER)
    first = made._process.pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(first, number)
    assert made.render(USER) == USER[0]["content"]
    assert made._process.pid == first


def test_after_a_limit_the_next_text_is_rendered():
    made = Template("{{ 'x' * (10**10 if messages[0].content == 'bad' else 3) }}", {})
    with pytest.raises(TemplateError):
        made.render([{"role": "user", "content": "bad"}])
    assert made.render(USER) == "xxx"


def test_a_forked_process_does_not_speak_over_its_parents_pipes():
    made = Template("{{ messages[0].content }}", {})
    made.render(USER)
    child = os.fork()
    if not child:
        os._exit(made.render(LONGER[3:]) != " 7 ")
    assert os.waitpid(child, 0)[1] == 0
    assert made.render(USER) == USER[0]["content"]


@pytest.mark.slow
def test_the_process_ends_with_its_parent_even_within_a_loop():
    program = (
        "import sys, threading, time; from earl.agents.template import Template\n"
        "made = Template(sys.argv[1], {}); made.render([{'content': 'ok'}])\n"
        "threading.Thread(target=made.render, args=([{'content': 'bad'}],), daemon=True).start()\n"
        "time.sleep(0.3); print(made._process.pid, flush=True); time.sleep(60)"
    )
    source = "{% if messages[0].content == 'bad' %}" + ATTACKS["loops that say nothing"] + "{% endif %}"
    with subprocess.Popen([sys.executable, "-c", program, source], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_process_has_no_key_of_its_parent(monkeypatch):
    monkeypatch.setenv("EARL_API_KEY", "secret-123")
    made = Template("x", {})
    made.render(USER)
    assert b"secret-123" not in Path(f"/proc/{made._process.pid}/environ").read_bytes()


def test_its_memory_stays_within_the_limit():
    made = Template("{{ ('x' * 150000000)|length }}{% if messages[0].content %}{{ 'x' * 10**10 }}{% endif %}", {})
    with pytest.raises(TemplateError, match="MiB"):
        made.render(USER)
    made.render([{"content": ""}])
    status = Path(f"/proc/{made._process.pid}/status").read_text()
    [peak] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmPeak")]
    assert peak * 1024 <= module.MEMORY_BYTES
