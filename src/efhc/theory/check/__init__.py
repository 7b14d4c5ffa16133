"""Was each assumption met and each promise kept? Typed checks, and the sentences that say what was found."""
