"""The paper's claims about its experiments: what is claimed, how it is measured, judged and worded."""
