"""Compiled loops of a run, on vectors whose sums have a written order (`lanes`).

    model_loops       passes over the models: drift, mixing, spread
    linear_loops      losses and gradients of linear models
    iteration_loops   whole iterations of linear models
    evaluation        right answers of linear models
    law_loops, codecs    strategies beyond the paper
    compiled_arithmetic, compiled_law   the arithmetic of `core`, made of these loops

Small networks (`network`) have loops that are compiled for their shapes: `network_loops` for whole networks, made of
`network_layers`, made of `products`. Both `products` and `lanes` emit instructions of LLVM (`emitting`).

The theory keeps its own loops in `efhc.theory.connectivity.graph_loops`.
"""
