"""`@gn.variant`: inputs, hyperparameters, and what it says to a declaration that is none."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gnomon as gn
from gnomon import Dim, Head, KVHead, Param, Query, Token, Value
from gnomon.dsl.axes import width_of_axis
from gnomon.dsl.nodes import Constant, Input, Variant, Width, walk

D = Width.of("d")
PACKAGE = Path(__file__).parents[2] / ".pyroot"


@gn.variant
def tapa(q, k, *, alpha=0.1, theta=0.5, name="half", sizes=(2, 3)):
    "a cos(2 pi (i - j)^alpha phi)"
    (qa, qp), (ka, kp) = gn.split(q, theta), gn.split(k, theta)
    phase = gn.dot(gn.rotate(qp, gn.position() * gn.frequencies(qp), name), kp)
    amplitude = gn.dot(qa, ka) * sizes[0]
    return gn.softmax(amplitude * gn.cos_turns(gn.distance() ** alpha * phase), mask=gn.causal())


def test_declaration_holds_what_was_written() -> None:
    assert tapa.name == "tapa"
    assert tapa.formula == "a cos(2 pi (i - j)^alpha phi)"
    assert tapa.node.hyperparameters == (
        ("alpha", 0.1),
        ("theta", 0.5),
        ("name", "half"),
        ("sizes", (2, 3)),
    )
    assert tapa.node.inputs == (
        Input("q", "row", "Head", (D,), "real"),
        Input("k", "column", "KVHead", (D,), "real"),
    )
    assert tapa.bind() == tapa.node
    assert repr(tapa) == "<variant tapa(q, k): a cos(2 pi (i - j)^alpha phi)>"


def test_inputs_come_in_the_order_of_the_arguments() -> None:
    @gn.variant
    def ordered(q, log_f: Token[Head], k, *, scale=2.0, slope: Param[Head]):
        return gn.softmax(slope * scale * gn.dot(q, k) + gn.decay(log_f), mask=gn.causal())

    assert [x.name for x in ordered.node.inputs] == ["q", "log_f", "k", "slope"]


def test_a_number_binds_a_hyperparameter() -> None:
    bound = tapa.bind(alpha=0.25)
    assert dict(bound.hyperparameters)["alpha"] == 0.25
    assert Constant(0.25) in set(walk(bound))
    assert Constant(0.1) not in set(walk(bound))
    assert tapa.bind(alpha=1) == tapa.bind(alpha=1.0)


def test_an_annotation_turns_a_hyperparameter_into_an_input() -> None:
    bound = tapa.bind(alpha=gn.Param[gn.Head])
    alpha = Input("alpha", "constant", "Head", (), "real")
    assert [x.name for x in bound.inputs] == ["q", "k", "alpha"]
    assert alpha in set(walk(bound.output))
    assert "alpha" not in dict(bound.hyperparameters)
    assert tapa.bind(alpha=gn.Param).inputs[2].heads is None


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"theta": gn.Param}, "share= as a Python number; got a parameter scalar"),
        ({"name": gn.Param}, "'half' or 'pairs'; got a parameter scalar"),
        ({"alpha": Token[Head]}, "say where"),
        ({"alhpa": 0.5}, "did you mean alpha"),
        ({"zzz": 0.5}, "it has alpha, theta, name, sizes"),
        ({"q": 0.5}, "'q' is an input of tapa"),
        ({"alpha": "much"}, "is 0.1 by default; got 'much'"),
        ({"alpha": True}, "is 0.1 by default; got True"),
        ({"name": 3}, "is 'half' by default; got 3"),
        ({"alpha": [0.5]}, "a number, a string or a tuple of them; got a list"),
    ],
)
def test_override_that_does_not_fit_is_refused(overrides: dict[str, object], words: str) -> None:
    with pytest.raises(gn.VariantError, match=words):
        tapa.bind(**overrides)


def test_a_declaration_is_no_function_of_tensors() -> None:
    with pytest.raises(gn.VariantError, match=r"gn.compile\(tapa\)"):
        tapa(1, 2, 3)


def annotated(q: Query[Head, Dim], k: Token[KVHead, Dim], x: Token[Head]) -> Value:
    return gn.softmax(gn.dot(q, k) + gn.decay(x), mask=gn.causal())


def plain(q: Value, k: Value, x: Token[Head]) -> Value:
    return gn.softmax(gn.dot(q, k) + gn.decay(x), mask=gn.causal())


def quoted(q, k, x: "Token[Head]"):
    return gn.softmax(gn.dot(q, k) + gn.decay(x), mask=gn.causal())


def test_annotations_of_q_and_k_and_quotes_change_nothing() -> None:
    first, second, third = (gn.variant(f).node for f in (annotated, plain, quoted))
    assert first.output == second.output == third.output
    assert first.inputs == second.inputs == third.inputs


def test_axes_with_names_of_their_own() -> None:
    class Hidden(gn.Axis):
        """Units."""

    assert width_of_axis(Hidden) == Width.of("Hidden")


def end(q: Value, k: Value) -> Value:
    return gn.softmax(gn.dot(q, k), mask=gn.causal())


def reserved(q, k, positions: Token):
    return end(q, k)


def star(q, k, *inputs):
    return end(q, k)


def keywords(q, k, **inputs):
    return end(q, k)


def only_k(k, x: Token[Head]):
    return gn.softmax(gn.decay(x), mask=gn.causal())


def other_q(q: Token[Head, Dim], k):
    return end(q, k)


def given_input(q, k, *, slope: Param[Head] = 1.0):  # type: ignore[assignment]
    return end(q, k)


def list_number(q, k, *, sections=[1, 2]):  # noqa: B006
    return end(q, k)


def unknown_axis(q, k, x: "Token[Nowhere]"):  # type: ignore[name-defined]  # noqa: F821
    return end(q, k)


def returns_nothing(q, k):
    end(q, k)


def unused_below(
    q,
    k,
    log_f: Token[Head],
):
    return end(q, k)


ANNOTATED: Callable[..., Value] = annotated
STRAY = ANNOTATED(*tapa.node.inputs, Input("x", "token", "Head", (), "real"))


def stray(q, k):
    return STRAY


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (reserved, "'positions' is a keyword of every call"),
        (star, r"\*inputs hides"),
        (keywords, r"\*inputs hides"),
        (only_k, "the arguments lack q"),
        (other_q, "q is what every kernel takes as q"),
        (given_input, "the input 'slope' has a default"),
        (list_number, "'sections' is a number, a string or a tuple"),
        (unknown_axis, "names something unknown"),
        (returns_nothing, "got a NoneType"),
        (unused_below, "'log_f' is never used"),
        (stray, "input 'x' of another variant"),
    ],
)
def test_declaration_that_is_none_is_refused(function: Callable[..., Value], words: str) -> None:
    with pytest.raises(gn.VariantError, match=words) as caught:
        gn.variant(function)
    assert caught.value.where.function == function.__name__


def test_an_input_is_found_at_its_own_line() -> None:
    with pytest.raises(gn.VariantError) as caught:
        gn.variant(unused_below)
    assert caught.value.where.text == "log_f: Token[Head],"
    assert caught.value.where.line == unused_below.__code__.co_firstlineno + 3


def test_a_function_without_source_is_traced_too() -> None:
    space: dict[str, object] = {"gn": gn}
    exec("def bare(q, k): return gn.softmax(gn.dot(q, k), mask=gn.causal())", space)
    assert gn.variant(space["bare"]).name == "bare"  # type: ignore[arg-type]


def errors() -> list[gn.GnomonError]:
    found: list[gn.GnomonError] = [
        gn.InputError("w", "4 axes", "3 axes", "add the head axis"),
        gn.UnsupportedError(
            "no lowering of expm", "use gn.rotation", tapa.node.where, "p", "numba"
        ),
        gn.UnsupportedError("no lowering of expm", "use gn.rotation"),
        gn.CompilerBug("a name twice", "name_values", Path("dump"), "gnomon lower fox"),
    ]
    for program in (lambda: gn.window(0), lambda: gn.entmax, lambda: gn.nothing):  # type: ignore[attr-defined]
        with pytest.raises(gn.GnomonError) as caught:
            program()
        found.append(caught.value)
    law = found[-2]
    assert isinstance(law, gn.LawError)
    return [*found, gn.BrokenLawsError((law, law))]


@pytest.mark.parametrize("error", errors(), ids=lambda e: type(e).__name__)
def test_errors_pickle(error: gn.GnomonError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again).keys() == vars(error).keys()


def test_texts_of_the_other_errors(golden) -> None:
    unplaced = [e for e in errors() if "test_trace.py" not in str(e)]
    assert len(unplaced) == 3
    assert "\n\n".join(map(str, unplaced)) == golden


def test_a_variant_pickles_into_a_process_with_other_hashes() -> None:
    node = gn.catalogue.path_fox.node
    program = (
        "import pickle, sys; import gnomon as gn\n"
        "node = pickle.load(sys.stdin.buffer)\n"
        "assert node == gn.catalogue.path_fox.node\n"
        "sys.stdout.buffer.write(pickle.dumps(node))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(node),
        capture_output=True,
        env={"PYTHONPATH": str(PACKAGE), "PYTHONHASHSEED": "7"},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    again = pickle.loads(done.stdout)
    assert isinstance(again, Variant)
    assert again == node
    assert again.where == node.where


USER_VARIANTS = '''
import gnomon as gn
from gnomon import Dim, Head, KVHead, Param, Query, Token, Value


class Hidden(gn.Axis):
    """The hidden units."""


@gn.variant
def mine(
    q: Query[Head, Dim], k: Token[KVHead, Dim], w: Token[KVHead, Dim], beta: Token[KVHead],
    scale: Param, ids: Token[int], b: Param[Hidden], *, alpha: float = 0.5, size: int = 8,
) -> Value:
    first, rest = gn.split(q, 0.5)
    turned = gn.concat(first * 2, rest)
    score = 2 * gn.dot(turned, k, through=gn.householder(w, beta)) * gn.rsqrt_dim(q) - 1
    score = score + abs(scale) ** alpha + gn.channel_sum(b / gn.dim(Hidden))
    near = gn.where(gn.distance() < size, score, -score)
    return gn.softmax(near, mask=gn.causal() & gn.same_document(ids))


bound = mine.bind(alpha=gn.Param[gn.Head])
'''


def test_mypy_accepts_annotated_variants_and_finds_mistakes(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER_VARIANTS)
    mistake = USER_VARIANTS.replace("gn.same_document(ids)", "gn.window('8')")
    mistake = mistake.replace("gn.dim(", "gn.dimm(")
    (tmp_path / "mistaken.py").write_text(mistake)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--python-version=3.11",
            f"--cache-dir={tmp_path / 'cache'}",
            "--config-file=",
            "user.py",
            "mistaken.py",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"MYPYPATH": str(PACKAGE)},
        check=False,
    )
    found = done.stdout.splitlines()
    assert [line for line in found if line.startswith("user.py")] == [], done.stdout
    assert any('has no attribute "dimm"' in line for line in found), done.stdout + done.stderr
    assert any('incompatible type "str"; expected "int"' in line for line in found)
