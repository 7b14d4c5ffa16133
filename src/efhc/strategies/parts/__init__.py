"""The parts that strategies are made of: triggers, codecs, choices of links, mixings, budgets. One kind, one class."""
