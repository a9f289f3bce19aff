"""Operations that wait: their order, what ends them, and which of them is served."""
