"""Compiled loops of a run, on vectors whose sums have a written order (`lanes`).

    model_loops           passes over the models: drift, mixing, spread, steps with momentum or correction
    linear_loops          losses and gradients of linear models
    iteration_loops       whole iterations of linear models
    linear_evaluation     right answers of linear models
    codecs                compressed messages
    compiled_arithmetic   the arithmetic of `core`, made of these loops

Small networks have loops that are compiled for their shapes: `network_loops` for whole networks, made of
`network_layers`, made of `products`.

The theory keeps its own loops in `efhc.theory.graph_loops`.
"""
