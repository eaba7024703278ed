"""The typed tensor IR: types, values, ops, modules, the te expressions beneath the ops, text in and out."""
