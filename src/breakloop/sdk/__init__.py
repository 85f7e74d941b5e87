"""The library: `Guard` in process or against a decision service, drop-in clients, transports, middleware. One file an
integration; what a framework brings is imported only there."""
