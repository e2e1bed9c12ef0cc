"""The state of one translation: the names in scope, what was read from Python, the tasks made so far.

Read `values.py` first, which defines what names are bound to. Everything that the translation reads from
Python (a global, an attribute, the result of a call) is recorded as an `Observation`, so that a launch can
detect that the kernel would now be translated to other IR.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from diffsim.errors import (
    KernelNameError,
    KernelSyntaxError,
    KernelTypeError,
    Span,
    warn,
)
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Block, Let, Load, Mem, Stmt, Task, Value
from diffsim.ir.op import TABLE
from diffsim.ir.traversal import Rewriter
from diffsim.ir.types import Type, i32
from diffsim.lang.frontend.values import (
    BoundPlace,
    Environment,
    Evaluated,
    KernelContainer,
    KernelLocal,
    StructValue,
    StructVar,
    Undefined,
    of_parts,
    parts_of,
)
from diffsim.lang.host.field_like import is_any_field, is_field
from diffsim.lang.host.inspection import is_of_program
from diffsim.lang.host.observations import (
    ABSENT,
    ATTRIBUTE,
    CALL,
    ITEM,
    Observation,
    Observations,
    is_settled,
    is_settled_outside,
)
from diffsim.lang.host.provenance import source_of
from diffsim.lang.host.source import Source, SyntaxNode
from diffsim.lang.host.unsupported import close_to
from diffsim.lang.types.descriptions import advice, describe, sample
from diffsim.lang.types.flattening import ResultForm
from diffsim.lang.types.matrix import Matrix

# Locals of the front end's own; no name of Python begins with "%". As locals, they are merged by branches
# and carried by loops without special cases.
BREAK, CONTINUE, RETURN, RESULT, DRAWS = "%break", "%continue", "%return", "%result", "%draws"
ADJOINT = "%adjoint of "  # followed by the name of a parameter, in the gradient given for a func


class AdjointTargets:
    """The places that the gradient given for a func may add to.

    Invariant: each statement that writes memory in the translated gradient is in `added`; others are refused.

    Attributes:
        name: the func.
        inputs: what the func's parameters are bound to, by the gradient's names for them.
        types: of those among them that are run-time floats.
        sums: their adjoints at the end of the gradient.
        mems: memories whose gradients it names.
        added: the statements that add to these.
    """

    def __init__(self, name: str, inputs: Mapping[str, object], types: dict[str, Type]) -> None:
        self.name = name
        self.inputs = inputs
        self.types = types
        self.sums: dict[str, Value] = {}
        self.mems: dict[Mem, None] = {}
        self.added: set[Stmt] = set()


class Frame:
    """One function under translation: the kernel itself or an inlined func.

    Attributes:
        parent: the call that is inlined, for messages; None for the kernel.
        targets: what it may add to, if it is the gradient of a func.
        cells: the variables of enclosing functions.
        env: the bindings of its locals; branches and loops replace the dictionary as a whole.
        locals: the names that it assigns anywhere, which are not searched for outside.
        ended: the names whose next assignment gives them a type anew (`regions.end_scope`).
    """

    def __init__(
        self, source: Source, parent: Span | None, targets: AdjointTargets | None = None
    ) -> None:
        function = source.function
        self.source = source
        self.parent = parent
        self.targets = targets
        self.globals = function.__globals__
        names = function.__code__.co_freevars
        self.cells = dict(zip(names, function.__closure__ or (), strict=True))
        self.env: Environment = {}
        self.locals = source.locals
        self.ended: frozenset[str] = frozenset()


class LoopOptions:
    """Options that `ds.loop_config` sets for the next outermost loop; `node` is its last call."""

    def __init__(self, node: SyntaxNode) -> None:
        self.node = node
        self.serialize = False
        self.independent = False
        self.block_dim: int | None = None


class TranslationContext:
    """The state of one translation.

    Attributes:
        mems: the memories that the kernel accesses, in order of their first use.
        constant_mems: those that the statement `ds.stop_grad(x)` makes constant in the innermost loop.
        running: the funcs that are being inlined, outermost first.
        level: nesting depth of loops and branches; 0 at kernel level.
        in_task: whether the body of a parallel loop is under translation.
        lane_axes: the indices of the current lane.
        warned_lines: the lines warned about, once each; unrolling translates a line several times.
        has_output: whether the user was shown something: warnings, `ds.static_print`.
        unrolled: the loops around that are being unrolled, outermost first, with their numbers of items.
        unrolled_iterations: those of the outermost one so far, and of all inside it.
        open_gradients: the funcs whose given gradients are under translation, to find recursion.
        changed_by_calls: locals that funcs changed through `ds.template()` parameters.
        reference_parameters: per func, the parameters that its callers see changed; see `by_reference`.
        evaluated_indices: indices that must not be evaluated again, with their values (None until known); see
            `indices_once`.
        next_loop: the options that `ds.loop_config` gave for the next outermost loop.
        result: the memory that the kernel's result is stored into.
    """

    def __init__(
        self,
        builder: Builder,
        frame: Frame,
        *,
        debug: bool = False,
        strict: bool = False,
        stops: bool = False,
    ) -> None:
        self.builder = builder
        self.frame = frame
        self.debug = debug
        self.strict = strict
        self.stops = stops  # at `breakpoint()`
        # A dictionary as an ordered set: the order of the memories is part of the IR.
        self.mems: dict[Mem, None] = {}
        self.constant_mems: set[Mem] = set()
        self.observations = Observations()
        self.running: list[Source] = []
        self.level = 0
        self.in_task = False
        self.lane_axes: tuple[Value, ...] = ()
        self.tasks: list[Task] = []
        self.uses_random = False
        self.warned_lines: set[tuple[str, int]] = set()
        self.has_output = False
        self.unrolled: list[tuple[ast.For, int]] = []
        self.unrolled_iterations = 0
        self.next_loop: LoopOptions | None = None
        self.result: Mem | None = None
        self.result_form: ResultForm | None = None  # of several values
        self.open_gradients: list[Any] = []
        self.changed_by_calls: set[str] = set()
        self.reference_parameters: dict[Any, dict[str, str]] = {}
        self.evaluated_indices: dict[ast.expr, Any] = {}

    @property
    def env(self) -> dict[str, Any]:
        return self.frame.env

    @property
    def is_outside(self) -> bool:
        """Whether a loop here would be an outermost one, which runs in parallel."""
        return not self.running and self.level == 0 and not self.in_task

    def warn_once(self, message: str, category: type[Warning], span: Span) -> None:
        """Warn, once per line: unrolled loops and inlined funcs are translated several times."""
        if (span.file, span.line) not in self.warned_lines:
            self.warned_lines.add((span.file, span.line))
            self.has_output = True
            warn(message, category, span)

    @contextlib.contextmanager
    def loop_body(self, stmts: list[Stmt]) -> Iterator[None]:
        """Translate the body of a loop, whose statements are these: its `ds.stop_grad(x)` holds for it alone.

        It holds for all of the body, also for what is loaded before the statement.
        """
        outer, self.constant_mems = self.constant_mems, set()
        yield
        if self.constant_mems:
            stmts[:] = Constants(self.constant_mems).block(Block(stmts)).stmts
        self.constant_mems = outer

    @contextlib.contextmanager
    def indices_once(self, node: ast.expr) -> Iterator[None]:
        """Evaluate the indices along `x[i].y[j]` once, however often the expression is visited.

        Deciding what a chain means takes several visits (is it a place in a field? a swizzle? a member?), and
        an index such as `ds.atomic_add(n[None], 1)` has an effect.
        """
        chain: list[ast.expr] = []
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            # An outer `with` for the same chain already evaluates it once.
            if isinstance(node, ast.Subscript) and node not in self.evaluated_indices:
                chain.append(node)
            node = node.value
        self.evaluated_indices.update(dict.fromkeys(chain))
        try:
            yield
        finally:
            for one in chain:
                del self.evaluated_indices[one]

    def has_changed(self, env: Environment) -> bool:
        """Return whether some name is bound to another object than in `env`."""
        return self.env.keys() != env.keys() or any(self.env[n] is not env[n] for n in env)

    def span(self, node: SyntaxNode) -> Span:
        return self.frame.source.span(node, self.frame.parent)

    def syntax(self, node: SyntaxNode, message: str, hint: str | None = None) -> KernelSyntaxError:
        return KernelSyntaxError(message, self.span(node), hint)

    def type_error(
        self, node: SyntaxNode, message: str, hint: str | None = None
    ) -> KernelTypeError:
        return KernelTypeError(message, self.span(node), hint)

    def lane_position(self) -> tuple[Value, ...]:
        """Return the key that orders lanes in a launch: the number of the task, then the lane's indices."""
        # Serial code has no indices: its position is the number of its task alone.
        return self.builder.const(len(self.tasks), i32), *self.lane_axes

    def use(self, mem: Mem) -> Mem:
        """Declare that the kernel accesses a memory."""
        self.mems[mem] = None
        if mem.like is not None:  # the shape is that one's
            self.mems[mem.like] = None
        return mem

    # ---- names

    def lookup(self, node: ast.Name) -> Evaluated:
        """Return the binding of a name: a local, an enclosing function's variable, a global or a builtin.

        Scopes are searched in Python's order (The Python Language Reference, 4.2.2).
        """
        return self.resolve(node)[0]

    def resolve(self, node: ast.Name, *, strict: bool = True) -> tuple[Any, Observation | None]:
        """Return the binding of a name, and the observation that found it outside the function.

        `strict=False` where only an attribute of the object is read: then its identity does not matter.
        """
        name, frame = node.id, self.frame
        if name in frame.env:
            found = frame.env[name]
            if isinstance(found, Undefined):
                raise found.error or KernelNameError(
                    f"{name} {found.why}",
                    self.span(node),
                    hint="assign it before the branch too, so that it has a value on every path",
                )
            # 1. Locals. Those in memory are loaded at each use, since another lane may have changed them.
            if isinstance(found, StructVar):
                return load_struct(self, found, name), None
            if isinstance(found, BoundPlace):
                return found.load(self, node), None
            return load_local(self, found), None
        # As in Python, a name that is assigned anywhere in a function is a local in all of it.
        if name in frame.locals:
            raise self._unbound(name, node)
        if name in frame.cells:  # of an enclosing function; empty until that assigns it
            cell = frame.cells[name]
            try:
                value = cell.cell_contents
            except ValueError:
                raise KernelNameError(
                    f"{name} has no value yet",
                    self.span(node),
                    hint="assign it in the function around before the kernel is launched",
                ) from None
            return value, self.observe(ATTRIBUTE, cell, "cell_contents", value, node, strict=strict)
        if name in frame.globals:
            # 2. Globals of the module that the function is defined in, not of that which calls it.
            value = frame.globals[name]
            return value, self.observe(ITEM, frame.globals, name, value, node, strict=strict)
        if hasattr(builtins, name):
            # A global of this name defined later would hide the builtin, so its absence is observed.
            self.observe(ABSENT, frame.globals, name, False, node)
            return getattr(builtins, name), None
        raise KernelNameError(
            f"{name} is not defined",
            self.span(node),
            hint=_similar(name, self)
            or f"define {name} before the first launch, or make it a parameter",
        )

    def _unbound(self, name: str, node: ast.Name) -> KernelNameError:
        outside = self.frame.globals.get(name)
        if is_field(outside):
            message = (
                f"{name} is assigned in this function, which makes it a local and not the field"
            )
            hint = f"name an element of the field: {sample(outside, name)}"
        elif outside is not None:
            message = (
                f"{name} is assigned in this function, which makes it a local without a value here"
            )
            hint = "use another name for the local"
        else:
            message = f"{name} has no value here"
            hint = (
                "assign it before; what a loop assigns for the first time ends with its iteration, and "
                "what stands outside under this name is another variable"
            )
        return KernelNameError(message, self.span(node), hint)

    def observe(
        self,
        how: str,
        owner: Evaluated,
        key: Any,
        value: Any,
        node: Any,
        *,
        strict: bool = True,
        at: Any = None,
    ) -> Observation:
        """Record what the translation read from Python; a launch reads it again and compares.

        Args:
            how: ITEM, ATTRIBUTE, ABSENT or CALL.
            owner: the object that was asked, or the observation that found it.
            key: the name, the key or the arguments.
            value: the answer that the kernel is compiled for.
            node: the expression.
            strict: whether the answer itself is compared, or only what is read from it later.
            at: where errors point, if not to `node`.
        """
        # Some observations have no expression of their own, such as a default argument.
        at = at or node
        name = getattr(node, "attr", None) or getattr(node, "id", None) or str(key)
        self.check_captured(value, at, name)
        observation = self.observations.note(
            how, owner, key, value, node, lambda: self.span(at), strict=strict
        )
        # The same question with two answers in one translation: there is no value to compile for.
        if observation.has_other(value):
            raise self.type_error(
                at,
                f"{observation.text} is another value each time it is read",
                "read it once, in Python, and let the kernel use that",
            )
        return observation

    def check_captured(self, value: object, node: SyntaxNode, name: str) -> None:
        """Refuse what cannot be compiled in; give a field the name of its variable."""
        # Its shape and layout are compiled in, so it needs both now.
        if is_any_field(value) and not value.placed:
            if value.destroyed:
                raise self.type_error(
                    node,
                    f"the field {ast.unparse(node)} was given up: its tree is destroyed",
                    "make another field, or destroy the tree later",
                )
            raise self.type_error(
                node,
                f"the field {ast.unparse(node)} has no place in memory yet",
                "give ds.field a shape, or place it: ds.root.dense(ds.i, n).place(...)",
            )
        source = source_of(value)
        # A number computed in Python from a field, as a constant of the kernel, would lose its gradient.
        if source is not None:
            source.refuse(ast.unparse(node), "read the field in the kernel")
        # A field without a name of its own is called by the variable in messages and in printed IR.
        if is_any_field(value):
            value.call_it(name)

    def evaluate(
        self, node: Any, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Evaluated:
        """Call a function at compile time, and record the call if its result may change later.

        The result can change although the arguments stay the same objects: that is so if code of the program
        decides it (`__len__`, `__eq__`). Arguments that are numbers or containers are observed themselves.
        """
        # These make a new iterator at each call, which cannot be compared: their arguments are observed.
        if function in (zip, enumerate, reversed):
            args = tuple(a if is_settled_outside(a) else self.evaluate(node, list, a) for a in args)
            return function(*args, **kwargs)
        # Evaluated now, as `ds.static` and constant conditions need the result.
        found = function(*args, **kwargs)
        # These examine the container alone, so objects among its elements need not be settled.
        if function in (list, tuple, len, isinstance):
            settled = is_settled_outside(args[0]) if args else True
        else:
            settled = all(map(is_settled, (*args, *kwargs.values())))
        # The truth of an object without `__bool__` and `__len__` cannot change (Language Reference, 3.3.1).
        plain = function is bool and not hasattr(type(args[0]), "__bool__")
        if settled or (plain and not hasattr(type(args[0]), "__len__")):  # any object is true
            return found
        # The observation keeps positional arguments only.
        if kwargs:
            function = functools.partial(function, **kwargs)
        self.observe(CALL, function, args, found, node)
        return found

    def program_error(self, node: SyntaxNode, problem: Exception) -> KernelTypeError:
        """Return the error for code of the program that failed while the translation ran it."""
        place = ""
        # Two places: the program's line that raised, and the expression of the kernel that asked for it.
        if is_of_program(problem):
            *_, last = traceback.walk_tb(problem.__traceback__)
            span = Span(last[0].f_code.co_filename, last[1])
            place = f"\n{span.text()}\n  asked for here:"
        return self.type_error(
            node,
            f"{ast.unparse(node)} raised {type(problem).__name__}: {problem}{place}",
            "Python evaluates it when the kernel is compiled; see what it does there",
        )

    # ---- values

    def value(
        self, thing: Evaluated, node: SyntaxNode, what: str = "this", like: Type | None = None
    ) -> Value:
        """Convert an operand to a run-time value: numbers, vectors, lists of them, matrices from Python.

        Args:
            thing: the operand.
            node: where errors point.
            what: the operand in messages.
            like: the type of its destination: literals among floats take its precision.
        """
        if isinstance(thing, Value):
            return thing
        if isinstance(thing, (bool, int, float, np.bool_, np.integer, np.floating)):
            # A literal adopts the type of its destination: no rounding to the default type in between.
            if like is not None and like.is_float and isinstance(thing, (int, float)):
                return self.builder.const(thing, like.scalar)
            with self.builder.at(self.span(node)):
                return self.builder.literal(thing)
        # Strong: elements have a type of their own. Weak: literals, which adopt that of their context.
        strong = False
        # A matrix made without dtype is a literal, whose precision follows `like`; an array of NumPy that is
        # not float64 was given its type on purpose, and keeps it.
        untyped = isinstance(thing, Matrix) and not thing.typed
        if isinstance(thing, Matrix):
            strong, thing = thing.typed, thing.entries
        if isinstance(thing, np.ndarray) and 0 < thing.ndim <= 2:
            # Each element becomes a constant in the code.
            if thing.size > 1024:
                raise self.type_error(
                    node,
                    f"an array of {thing.size} numbers is no constant vector or matrix",
                    hint="pass it as an argument annotated ds.types.ndarray(), or copy it into a field",
                )
            strong = strong or (thing.dtype != np.float64 and not untyped)
            # `item` makes a Python number, which has no precision of its own.
            flat = [self.builder.literal(x) if strong else x.item() for x in thing.ravel()]
            return self.builder.tensor_of(flat, thing.shape, like)
        if isinstance(thing, (list, tuple)) and thing:
            return self.tensor_of_rows(thing, node, like)
        raise self.type_error(
            node, f"{what} is {describe(thing)}, not a number or a vector", advice(thing)
        )

    def tensor_of_rows(self, rows: Any, node: Any, like: Type | None = None) -> Value:
        """Make a vector of numbers, or a matrix of vectors of equal length."""
        flat: list[Any] = []
        # 0 stands for a number; vectors have a width of at least 1, so that the two cannot be mixed.
        widths = set()
        for row in rows:
            if isinstance(row, (list, tuple, Matrix, np.ndarray)):
                row = self.value(row, node, like=like)
            if isinstance(row, Value) and row.type.shape:
                if len(row.type.shape) != 1:
                    raise self.type_error(
                        node,
                        "a matrix is made of numbers or vectors, not matrices",
                        "name the rows",
                    )
                widths.add(row.type.shape[0])
                extract = TABLE["extract"]
                flat += [self.builder.op(extract, (row, k)) for k in range(row.type.shape[0])]
            elif isinstance(row, (Value, bool, int, float, np.generic)):
                widths.add(0)
                flat.append(row)
            else:
                raise self.type_error(
                    node, f"an element is {describe(row)}, not a number", advice(row)
                )
        if len(widths) != 1:
            raise self.type_error(
                node, "the rows of a matrix have different lengths", "fill the short ones up"
            )
        (width,) = widths
        shape = (len(rows), width) if width else (len(rows),)
        return self.builder.tensor_of(flat, shape, like)


_BUILTINS = "abs bool enumerate float int len max min pow range round sum zip".split()


def _similar(name: str, cx: TranslationContext) -> str | None:
    # In the order of the scopes: a local is proposed before a global of a similar name.
    known = [*cx.env, *cx.frame.cells, *cx.frame.globals, *_BUILTINS]
    close = close_to(name, [k for k in known if k[0] not in "_%"])
    return f"did you mean {close}?" if close else None


def with_members(env: Environment, names: Iterable[str]) -> list[str]:
    """Return the names, and for structs among them the names of all their members.

    "p." denotes the receiver of a method call, which counts only if it is a struct.
    """
    made: list[str] = []
    for name in names:
        plain = name.removesuffix(".")
        var = env.get(plain)
        if isinstance(var, StructVar):
            made += [plain, *with_members(env, [f"{plain}.{m}" for m in var.type.members])]
        elif plain == name:
            made.append(name)
    return list(dict.fromkeys(made))


def load_struct(cx: TranslationContext, var: StructVar, name: str) -> StructValue:
    """Return a local struct as a value, loading the members that live in temporaries."""
    members: dict[str, Evaluated] = {}
    for member in var.type.members:
        # See `functions/structs.py`: each member of a local struct is bound to a name of its own.
        key = f"{name}.{member}"
        thing = cx.env[key]
        members[member] = (
            load_struct(cx, thing, key) if isinstance(thing, StructVar) else load_local(cx, thing)
        )
    return StructValue(var.type, members)


def load_local(cx: TranslationContext, thing: Evaluated) -> Evaluated:
    """Return a local as a value, loading it first if it lives in a temporary."""
    if isinstance(thing, KernelLocal):
        return cx.builder.load(cx.use(thing.mem), ())
    return _load_parts(cx, thing.form) if isinstance(thing, KernelContainer) else thing


def _load_parts(cx: TranslationContext, form: Evaluated) -> Evaluated:
    parts = parts_of(form)
    if parts is None:
        return load_local(cx, form)
    return of_parts(form, [_load_parts(cx, part) for part in parts])


class Constants(Rewriter):
    """Stops derivatives at everything loaded from certain memories: the statement `ds.stop_grad(x)`."""

    def __init__(self, mems: set[Mem]) -> None:
        super().__init__()
        self.mems = mems

    # Values keep their identity: only loads are rewritten, and no code is duplicated.
    def fresh(self, v: Value) -> Value:
        return v

    def task(self, t: Task) -> Task:
        return t.replace(bounds=self.block(t.bounds), body=self.block(t.body))

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, Load) and s.mem in self.mems:
            # The old output is bound to the op's result, so that all uses see the constant.
            read = Value(s.out.type)
            return [
                Load(read, s.mem, s.index, s.span),
                Let(s.out, TABLE["stop_grad"], (read,), s.span),
            ]
        return [self.copy(s)]
