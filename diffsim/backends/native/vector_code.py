"""LLVM text of vector forms of functions: vectors of one number, and lines that name values."""

from __future__ import annotations

import struct

BITS = {"float": 32, "double": 64}
MANTISSA = {"float": 23, "double": 52}


class VectorCode:
    """The lines of a function on vectors of `lanes` numbers of LLVM's type `scalar`."""

    def __init__(self, scalar: str, lanes: int) -> None:
        self.scalar, self.lanes, self.bits = scalar, lanes, BITS[scalar]
        self.type = f"<{lanes} x {scalar}>"
        self.whole = f"<{lanes} x i{self.bits}>"
        self.mask = f"<{lanes} x i1>"
        self.lines: list[str] = []

    def let(self, name: str, code: str) -> str:
        """Emit a statement that gives a value its name; return it."""
        self.lines.append(f"%{name} = {code}")
        return f"%{name}"

    def all_of(self, x: float) -> str:
        """Return a vector of one number, which has the type's precision."""
        if self.scalar == "float":
            x = struct.unpack("f", struct.pack("f", x))[0]
        number = f"0x{pattern(x, 'double'):016X}"
        return f"<{', '.join([f'{self.scalar} {number}'] * self.lanes)}>"

    def integers(self, x: int) -> str:
        """Return a vector of one integer, as wide as the numbers are."""
        return f"<{', '.join([f'i{self.bits} {x}'] * self.lanes)}>"

    def fma(self, name: str, a: str, b: str, c: str) -> str:
        """Emit a b + c, rounded once."""
        t = self.type
        return self.let(name, f"call {t} @{self.fma_symbol}({t} {a}, {t} {b}, {t} {c})")

    @property
    def fma_symbol(self) -> str:
        return f"llvm.fma.v{self.lanes}f{self.bits}"

    def definition(self, symbol: str) -> str:
        """Return the text of the function `symbol`, of %x, which is written where it is called."""
        head = f"define internal {self.type} @{symbol}({self.type} %x)"
        head += " alwaysinline nounwind willreturn memory(none) {"
        return "\n  ".join([head, "entry:", *self.lines]) + "\n}"


def pattern(x: float, scalar: str) -> int:
    """Return the bits of a number of LLVM's type `scalar`, as an integer."""
    number, integer = (">f", ">I") if scalar == "float" else (">d", ">Q")
    return int(struct.unpack(integer, struct.pack(number, x))[0])
