"""Small pipelines of control flow. (kfp reads annotations: no `from __future__ import annotations` here.)"""

from kfp import dsl

from tests.rehearsal.execution.graphs import IMAGE, SAY, WRITE, fail, fail_to_write, final, flaky, say, write

# Marks its presence in a folder and waits for as many others: alone it fails.
MEET = """
import os, sys, time
folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, name), "w").close()
end = time.monotonic() + 20
while len(os.listdir(folder)) < count:
    assert time.monotonic() < end, "nobody else is here"
    time.sleep(0.02)
"""


@dsl.container_component
def meet(folder: str, name: str, count: int):
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", MEET], args=[folder, name, count])


@dsl.container_component
def make_list(words: dsl.OutputPath(list), content: str = '["a", "b"]'):
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", WRITE], args=[words, content])


@dsl.container_component
def gather(heard: dsl.OutputPath(str), items: list):
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", SAY], args=[heard, items])


@dsl.container_component
def join(first: str, second: str, heard: dsl.OutputPath(str)):
    both = dsl.ConcatPlaceholder([first, second])
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", SAY], args=[heard, both])


@dsl.pipeline(name="siblings")
def siblings(folder: str):
    for name in ("a", "b", "c"):
        meet(folder=folder, name=name, count=3)


@dsl.pipeline(name="branches")
def branches(value: str):
    asked = write(value=value)
    with dsl.If(asked.outputs["out"] == "a"):
        say(text="a")
    with dsl.Elif(asked.outputs["out"] == "b"):
        say(text="b")
    with dsl.Else():
        say(text="else")


@dsl.pipeline(name="inner-branches")
def inner_branches(first: int, second: float):
    with dsl.If(first > 1):
        with dsl.If(second <= 0.5):
            say(text="both")
        with dsl.Else():
            say(text="first")


@dsl.pipeline(name="gated")
def gated(value: str):
    with dsl.If(value == "open"):
        say(text="inside")
    say(text="after")
    say(text="anyway")


@dsl.pipeline(name="static-loop")
def static_loop():
    with dsl.ParallelFor([{"a": "x", "b": "1"}, {"a": 'y "z"', "b": "2"}]) as item:
        say(text=item.a)


@dsl.pipeline(name="parameter-loop")
def parameter_loop(items: list):
    with dsl.ParallelFor(items) as item:
        say(text=item)


@dsl.pipeline(name="named-loop")
def named_loop(content: str):
    made = make_list(content=content)
    with dsl.ParallelFor(made.outputs["words"]) as item:
        say(text=f"word {item}")


@dsl.pipeline(name="nested-loops")
def nested_loops():
    with dsl.ParallelFor(["a", "b"]) as outer:
        inside = make_list(content='["1", "2"]')
        with dsl.ParallelFor(inside.outputs["words"]) as inner:
            join(first=outer, second=inner)


@dsl.pipeline(name="failing-iteration")
def failing_iteration():
    with dsl.ParallelFor([0, 3]) as code:
        fail(code=code)
    write(value="beside")


@dsl.pipeline(name="collected")
def collected(items: list):
    with dsl.ParallelFor(items) as item:
        made = write(value=item)
    gather(items=dsl.Collected(made.outputs["out"]))


@dsl.pipeline(name="collected-twice")
def collected_twice():
    with dsl.ParallelFor(["a", "b"]) as outer, dsl.ParallelFor(["1", "2"]) as inner:
        made = join(first=outer, second=inner)
    gather(items=dsl.Collected(made.outputs["heard"]))


@dsl.pipeline(name="lost-item")
def lost_item():
    # kfp's compiler gives the inner loop no input for the outer item of such a text.
    with dsl.ParallelFor(["a", "b"]) as outer, dsl.ParallelFor(["1", "2"]) as inner:
        say(text=f"{outer}{inner}")


@dsl.pipeline(name="two-handlers")
def two_handlers():
    with dsl.ExitHandler(final()):
        write(value="well")
    with dsl.ExitHandler(final()):
        fail(code=2)


@dsl.pipeline(name="tired")
def tired(marker: str):
    flaky(marker=marker).set_retry(1, backoff_duration="0s")
    fail(code=6).set_retry(2, backoff_duration="0s")


@dsl.pipeline(name="unwritten")
def unwritten():
    say(text=fail_to_write().outputs["out"])


@dsl.pipeline(name="two")
def two():
    say(text="a")
    say(text="b")


@dsl.pipeline(name="in-threes")
def in_threes(items: list):
    with dsl.ParallelFor(items, parallelism=3) as item:
        say(text=item)


@dsl.pipeline(name="patient")
def patient():
    say().set_retry(9, backoff_duration="10s", backoff_factor=2, backoff_max_duration="100s")


@dsl.pipeline(name="exit-after-retries")
def exit_after_retries():
    with dsl.ExitHandler(final()):
        first = say().set_retry(1, backoff_duration="3600s")
        say().after(first)
