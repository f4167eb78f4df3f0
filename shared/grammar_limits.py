"""How much a grammar may take, for whoever compiles one: what one process accepts the others accept, too."""

from llguidance import LLParserLimits

from shared.limits import (
    GRAMMAR_FUEL,
    GRAMMAR_ROW_ITEMS_MAX,
    GRAMMAR_STATES_MAX,
    GRAMMAR_STEP_FUEL,
    GRAMMAR_STEP_ITEMS_MAX,
    GRAMMAR_SYMBOLS_MAX,
)


def parser_limits() -> LLParserLimits:
    """Return the bounds of shared.limits as llguidance takes them. Its errors then tell no parser's state."""
    return LLParserLimits(
        max_items_in_row=GRAMMAR_ROW_ITEMS_MAX,
        initial_lexer_fuel=GRAMMAR_FUEL,
        step_lexer_fuel=GRAMMAR_STEP_FUEL,
        step_max_items=GRAMMAR_STEP_ITEMS_MAX,
        max_lexer_states=GRAMMAR_STATES_MAX,
        max_grammar_size=GRAMMAR_SYMBOLS_MAX,
        verbose_errors=False,
    )
