"""Access: who may connect. CONNECT, users, nkeys, certificate names, cipher names; pure rules in Python.

Called once per connection, or when the configuration is read. May import only the engine's options, limits and errors;
the compiled modules of the engine do not import it.
"""
