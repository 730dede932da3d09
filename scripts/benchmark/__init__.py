"""What `make bench` is made of: the cells, one run of one, the results that are kept, and what is read from them.

Everything but `measure`, `sides` and `damage` is pure: it works on kept results, without a server.
"""
