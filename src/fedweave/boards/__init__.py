"""Boards that outsiders can enter: rows by digest, terms for all, and contestants by command and digest."""

from fedweave.boards.board import Board, read
from fedweave.boards.judging import judge
from fedweave.boards.submission import submit
