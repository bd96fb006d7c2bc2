"""Connect Four by alpha-beta search on bitboards, exact or to a fixed depth, compiled by numba, which caches the
machine code on disk. Exact play:

    solve ─▶ search, over narrowing windows ─▶ moves that are not settled, the most promising first ─▶ search …

A score is that of the player to move: 22 less the stones that the winner will have set, negative where that is the
other player, 0 for a draw; so a sooner win and a later loss score higher. `own` and `other` are the stones of the
player to move and of the other one as in `earl.envs.games.connect4`, `stones` is their number, `alpha` to `beta` the
window.
"""

import lzma
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from earl.agents.scripted.perfect import WIN, Solution
from earl.compiled import compiled
from earl.envs.games import connect4
from earl.envs.games.base import Game, State
from earl.envs.games.connect4 import BOARD, BOTTOM, COLUMNS, MIDDLE, ROWS

Integers = NDArray[np.int64]

CELLS = ROWS * COLUMNS
MIDDLE_FIRST = connect4.CONNECT4.preferred
HIGHEST = CELLS // 2 + 1
"""Above all scores."""
COLUMN = 0b111111
ALL_COLUMNS = (1 << COLUMNS) - 1
EVEN_ROWS, TWO_ROWS, FOUR_ROWS = BOTTOM * 0b101010, BOTTOM * 0b11, BOTTOM * 0b1111
BOOK = Path(__file__).with_name("connect4.book")
TABLE_BITS = 22
LOOK_AHEAD_STONES = 30
"""Positions of fewer stones are looked up before any of their siblings is searched."""


completing, has_four = compiled(connect4.completing), compiled(connect4.has_four)


@compiled
def count(bits: int) -> int:
    number = 0
    while bits:
        bits &= bits - 1
        number += 1
    return number


# The transposition table. An entry: 29 bits of the mixed key, 6 each of lower and upper bound, the rest of the work.

KEY_BITS, TAG_BITS, SCORE_BITS = 49, 29, 6
KEY, TAG, SCORE = (1 << KEY_BITS) - 1, (1 << TAG_BITS) - 1, (1 << SCORE_BITS) - 1
LOWER_AT, UPPER_AT, WORK_AT = TAG_BITS, TAG_BITS + SCORE_BITS, TAG_BITS + 2 * SCORE_BITS
MIXER = 0x1E3779B97F4A7
"""Odd, so that multiplying by it maps no two keys to one; the golden ratio, so that it spreads them."""
WORK_OF_BOOK = 63
"""More than any search takes, so that nothing replaces the book; else the bit length of the number of positions."""
SHIFTED = 32
"""Added to a score, so that what is stored is positive."""


def new_table(bits: int = TABLE_BITS) -> Integers:
    """2**bits entries, two to a bucket. From 21 on, bucket and tag together hold the whole key."""
    return np.zeros(1 << bits, np.int64)


mirrored = compiled(connect4.mirrored)


@compiled
def mixed_key(own: int, other: int) -> int:
    """The same number for a position and its mirror image. Each column holds own stones, and a one above its top."""
    key = own + (own | other) + BOTTOM
    return min(key, mirrored(key)) * MIXER & KEY


@compiled
def place(table: Integers, key: int) -> int:
    """Where a position stands in its bucket, else where it may be put: in place of what took less work."""
    bucket = 2 * ((key >> KEY_BITS - TAG_BITS) * (len(table) // 2) >> TAG_BITS)
    first, second = table[bucket], table[bucket + 1]
    if second and second & TAG == key & TAG:
        return bucket + 1
    if first and first & TAG == key & TAG:
        return bucket
    return bucket + int(first >> WORK_AT > second >> WORK_AT)


@compiled
def bounds(table: Integers, key: int) -> tuple[int, int]:
    entry = table[place(table, key)]
    if entry == 0 or entry & TAG != key & TAG:
        return -HIGHEST, HIGHEST
    return (entry >> LOWER_AT & SCORE) - SHIFTED, (entry >> UPPER_AT & SCORE) - SHIFTED


@compiled
def store(table: Integers, key: int, lower: int, upper: int, work: int) -> None:
    known_lower, known_upper = bounds(table, key)
    at = place(table, key)
    if table[at] & TAG == key & TAG:
        work = max(work, table[at] >> WORK_AT)
    elif table[at] >> WORK_AT == WORK_OF_BOOK:
        return
    lower, upper = max(lower, known_lower) + SHIFTED, min(upper, known_upper) + SHIFTED
    table[at] = key & TAG | lower << LOWER_AT | upper << UPPER_AT | work << WORK_AT


# What is known without search.


@compiled
def claimeven(own: int, other: int) -> int:
    """An upper bound where the first player is to move (Allis 1988). The second one answers in the same column, or with
    another even cell that is open: so it gets all even cells that are not open now."""
    occupied = own | other
    even = EVEN_ROWS & ~occupied & ~(occupied + BOTTOM)
    if has_four(BOARD & ~(other | even)):
        return HIGHEST
    if not has_four(other | even):
        return 0
    # It wins when the highest cell of its line is filled, which may be the last column to be played.
    if has_four(other | even & TWO_ROWS):
        return -3
    return -2 if has_four(other | even & FOUR_ROWS) else -1


@compiled
def certain(own: int, other: int, stones: int, alpha: int, beta: int) -> tuple[int, int]:
    """The window without what cannot be, where neither player can win in two plies."""
    lower, upper = max(alpha, -(max(0, 40 - stones) // 2)), min(beta, (41 - stones) // 2)
    if upper > 0 and not has_four(BOARD & ~other):
        upper = 0
    if lower < 0 and not has_four(BOARD & ~own):
        lower = 0
    return lower, upper if stones & 1 else min(upper, claimeven(own, other))


@compiled
def settle(own: int, other: int, stones: int, alpha: int, beta: int) -> tuple[int, int, int, int, bool]:
    """Play on while one move alone does not lose at once; the player to move cannot win at once.

    Returns the position reached, its value for the player to move there, and whether that is known, or bounded as far
    as the window asks.
    """
    while True:
        occupied = own | other
        moves = (occupied + BOTTOM) & BOARD
        if moves == 0:
            return own, other, stones, 0, True
        threats = completing(other, occupied)
        safe = moves & ~(threats >> 1)
        if threats & moves:
            safe &= threats & moves if count(threats & moves) == 1 else 0
        if safe == 0:
            return own, other, stones, -((CELLS - stones) // 2), True
        lower, upper = certain(own, other, stones, alpha, beta)
        if lower >= upper:
            return own, other, stones, upper if upper <= alpha else lower, True
        if safe & (safe - 1):
            return own, other, stones, 0, False
        own, other, stones, alpha, beta = other, own | safe, stones + 1, -upper, -lower


# The search.


@compiled
def promise(own: int, other: int) -> int:
    """How good a position looks for `own`, who has just moved: its threats, above all those that can soon be played."""
    occupied = own | other
    threats, soon = completing(own, occupied), occupied + BOTTOM << 1
    return 12 * count(threats & soon) + 5 * count(threats & soon << 1) + 3 * count(threats)


@compiled
def write(children: Integers, stones: int, number: int, own: int, other: int, reached: int, likely: int) -> None:
    children[stones, number, 0], children[stones, number, 1] = own, other
    children[stones, number, 2], children[stones, number, 3] = reached, likely


@compiled
def read(children: Integers, stones: int, number: int) -> tuple[int, int, int, int]:
    return (
        children[stones, number, 0],
        children[stones, number, 1],
        children[stones, number, 2],
        children[stones, number, 3],
    )


@compiled
def expand(own: int, other: int, stones: int, alpha: int, beta: int, children: Integers) -> tuple[int, int]:
    """Write down the positions after each move that have to be searched: own, other, stones, how promising.

    Returns their number and the best of the other moves' values; the first that reaches beta ends it.
    """
    safe = (own | other) + BOTTOM & BOARD & ~(completing(other, own | other) >> 1)
    number, best = 0, -HIGHEST
    for column in range(COLUMNS):
        move = safe & COLUMN << 7 * column
        if move == 0:
            continue
        mine, theirs, reached, value, known = settle(other, own | move, stones + 1, -beta, -max(alpha, best))
        if known:
            best = max(best, -value if (reached - stones) & 1 else value)
            if best >= beta:
                return 0, best
        else:
            likely = 8 * promise(own | move, other) + 3 - abs(3 - column)
            write(children, stones, number, mine, theirs, reached, likely)
            number += 1
    return number, best


@compiled
def look_up(table: Integers, stones: int, number: int, alpha: int, beta: int, children: Integers) -> tuple[int, int]:
    """Drop the children that the table decides. Returns the number left and the best value of those."""
    left, best = 0, -HIGHEST
    for index in range(number):
        own, other, reached, likely = read(children, stones, index)
        if reached < LOOK_AHEAD_STONES:
            lower, upper = bounds(table, mixed_key(own, other))
            if (reached - stones) & 1:
                lower, upper = -upper, -lower
            if lower >= beta:
                return 0, lower
            if upper <= alpha:
                best = max(best, upper)
                continue
        write(children, stones, left, own, other, reached, likely)
        left += 1
    return left, best


@compiled
def take_best(children: Integers, stones: int, number: int) -> tuple[int, int, int, int]:
    """Remove the most promising child of the first ones, and put the last in its place."""
    chosen = 0
    for index in range(1, number):
        if children[stones, index, 3] > children[stones, chosen, 3]:
            chosen = index
    best = read(children, stones, chosen)
    own, other, reached, likely = read(children, stones, number - 1)
    write(children, stones, chosen, own, other, reached, likely)
    return best


@compiled
def search(
    own: int, other: int, stones: int, alpha: int, beta: int, table: Integers, children: Integers, nodes: Integers
) -> int:
    """The score of a position that `settle` left open: exact within the window, else a bound on that side."""
    began, nodes[0] = nodes[0], nodes[0] + 1
    number, best = expand(own, other, stones, alpha, beta, children)
    if number == 0:
        return best
    # The player to move does not win within four plies.
    alpha, beta = max(alpha, best), min(beta, (39 - stones) // 2)
    if alpha >= beta:
        return beta
    key = mixed_key(own, other)
    lower, upper = bounds(table, key)
    if lower >= beta or lower == upper:
        return lower
    if upper <= alpha:
        return upper
    alpha, beta = max(alpha, lower), min(beta, upper)
    lowest = alpha
    number, decided = look_up(table, stones, number, alpha, beta, children)
    best = max(best, decided)
    while number and best < beta:
        mine, theirs, reached, _ = take_best(children, stones, number)
        number -= 1
        alpha = max(alpha, best)
        if (reached - stones) & 1:
            best = max(best, -search(mine, theirs, reached, -beta, -alpha, table, children, nodes))
        else:
            best = max(best, search(mine, theirs, reached, alpha, beta, table, children, nodes))
    lower, upper = best if best > lowest else -HIGHEST, best if best < beta else HIGHEST
    store(table, key, lower, upper, bit_length(nodes[0] - began))
    return best


@compiled
def bit_length(number: int) -> int:
    bits = 0
    while number:
        number >>= 1
        bits += 1
    return bits


@compiled
def solve(own: int, other: int, alpha: int, beta: int, table: Integers, nodes: Integers) -> int:
    """The score of any position that can be reached: exact within the window, else a bound on that side. It is searched
    with windows of one point from 0 on (MTD(f), Plaat et al. 1996)."""
    occupied, stones = own | other, count(own | other)
    if has_four(other):
        return -((CELLS + 2 - stones) // 2)
    if completing(own, occupied) & occupied + BOTTOM:
        return (CELLS + 1 - stones) // 2
    mine, theirs, reached, score, known = settle(own, other, stones, alpha, beta)
    if not known:
        children = np.empty((CELLS, COLUMNS, 4), np.int64)
        lower, upper = (-beta, -alpha) if (reached - stones) & 1 else (alpha, beta)
        while lower < upper:
            window = min(max(score, lower + 1), upper)
            score = search(mine, theirs, reached, window - 1, window, table, children, nodes)
            if score < window:
                upper = score
            else:
                lower = score
    return -score if (reached - stones) & 1 else score


@compiled
def best_columns(own: int, other: int, table: Integers, nodes: Integers) -> int:
    """The moves of the highest score, a bit for each column. Of each move no more is asked than whether it is one."""
    best, chosen = solve(own, other, -HIGHEST, HIGHEST, table, nodes), 0
    for column in range(COLUMNS):
        move = (own | other) + BOTTOM & COLUMN << 7 * column
        if move and solve(other, own | move, -best, 1 - best, table, nodes) <= -best:
            chosen |= 1 << column
    return chosen


# Search to a fixed depth: the values of `perfect.search`, 40 times as fast. It has no table: it looks at too little.


@compiled
def evaluate(own: int, other: int) -> int:
    """The difference between both players' `promise` in `earl.envs.games.connect4`."""
    occupied = own | other
    value = 8 * (count(completing(own, occupied)) - count(completing(other, occupied)))
    for columns in MIDDLE:
        value += count(own & columns) - count(other & columns)
    return value


@compiled
def look_ahead(own: int, other: int, depth: int, alpha: int, beta: int) -> int:
    moves = (own | other) + BOTTOM & BOARD
    if has_four(other):
        return -WIN - depth
    if moves == 0:
        return 0
    if depth == 0:
        return evaluate(own, other)
    if completing(own, own | other) & moves:
        return WIN + depth - 1
    if depth > 1:
        blocks = completing(other, own | other) & moves
        if blocks & (blocks - 1):
            return 2 - WIN - depth
        moves = blocks or moves
    best = -2 * WIN
    for column in MIDDLE_FIRST:
        move = moves & COLUMN << 7 * column
        if move:
            best = max(best, -look_ahead(other, own | move, depth - 1, -beta, -max(alpha, best)))
            if best >= beta:
                break
    return best


@compiled
def best_columns_ahead(own: int, other: int, depth: int, columns: int) -> int:
    """Those of some columns, a bit for each, that look best `depth` plies ahead, own move included."""
    best, chosen = -2 * WIN, 0
    for column in MIDDLE_FIRST:
        move = (own | other) + BOTTOM & COLUMN << 7 * column
        if move and columns >> column & 1:
            value = -look_ahead(other, own | move, depth - 1, -2 * WIN, 1 - best)
            if value >= best:
                chosen = (chosen if value == best else 0) | 1 << column
                best = value
    return chosen


@compiled
def best_columns_that_keep(own: int, other: int, depth: int, table: Integers, nodes: Integers) -> int:
    """Those that look best of the columns that keep win, draw or loss. The solver is asked about few: most often one
    that looks best keeps it."""
    value, left = min(1, solve(own, other, -1, 1, table, nodes)), ALL_COLUMNS
    if value < 0:
        return best_columns_ahead(own, other, depth, left)
    while True:
        likely, chosen = best_columns_ahead(own, other, depth, left), 0
        for column in range(COLUMNS):
            move = (own | other) + BOTTOM & COLUMN << 7 * column
            if likely >> column & 1 and solve(other, own | move, -value, 1 - value, table, nodes) <= -value:
                chosen |= 1 << column
        if chosen:
            return chosen
        left &= ~likely


def best_ahead(state: State, depth: int) -> tuple[int, ...]:
    return columns_of(best_columns_ahead(*sides(state), depth, ALL_COLUMNS))


# The book: positions, and what is known of them.


@compiled
def fill(table: Integers, book: Integers) -> None:
    for entry in book:
        lower, upper = entry >> KEY_BITS & SCORE, entry >> KEY_BITS + SCORE_BITS
        store(table, entry & KEY, lower - SHIFTED, upper - SHIFTED, WORK_OF_BOOK)


def read_book(path: Path = BOOK) -> Integers:
    """Mixed key, lower and upper bound of each position in one number."""
    return np.cumsum(np.frombuffer(lzma.decompress(path.read_bytes()), "<i8"))


def write_book(entries: Integers, path: Path = BOOK) -> None:
    path.write_bytes(lzma.compress(np.diff(np.sort(entries), prepend=0).astype("<i8").tobytes(), preset=9))


@cache
def _table() -> Integers:
    table = new_table()
    fill(table, read_book())
    return table


def score(state: State) -> int:
    return int(solve(*sides(state), -HIGHEST, HIGHEST, _table(), np.zeros(1, np.int64)))


def soonest(state: State) -> tuple[int, ...]:
    """The moves that win soonest, else draw, else lose latest."""
    return columns_of(best_columns(*sides(state), _table(), np.zeros(1, np.int64)))


def practical(state: State, solved_from: int) -> tuple[int, ...]:
    """The moves that look best four plies ahead; of those that keep win, draw or loss from `solved_from` stones on."""
    if (state.first | state.second).bit_count() < solved_from:
        return best_ahead(state, 4)
    return columns_of(best_columns_that_keep(*sides(state), 4, _table(), np.zeros(1, np.int64)))


def columns_of(bits: int) -> tuple[int, ...]:
    return tuple(column for column in range(COLUMNS) if bits >> column & 1)


def sides(state: State) -> tuple[int, int]:
    """The stones of the player to move, and of the other one."""
    return (state.second, state.first) if state.player else (state.first, state.second)


def outcome(_game: Game, state: State) -> Solution:
    """What best play comes to; a full board is as far away as the cells that are empty."""
    stones, worth = (state.first | state.second).bit_count(), score(state)
    if worth == 0:
        return Solution(0, CELLS - stones)
    left = HIGHEST - abs(worth) - (stones + (worth < 0)) // 2
    return Solution(1, 2 * left - 1) if worth > 0 else Solution(-1, 2 * left)
