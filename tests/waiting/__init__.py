"""Operations that wait: their order, what ends them, and who is served."""
