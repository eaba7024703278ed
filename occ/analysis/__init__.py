"""What is asked about models and artifacts besides compiling them: the functions that the commands of these names call."""
