"""Traits of code: what it reads that does not count otherwise."""

from pipeline.code.form import read_table

DETAIL = "execution_detail"
"""The decorator that declares that a definition affects no result."""

TRAITS_OF_NAMES = read_table("""
docs: __doc__ getdoc
names: __name__ __qualname__ co_name co_qualname
names modules: __module__ __mro__ __bases__ mro
hints types order: __annotations__ __annotate__
hints types: __signature__ __wrapped__ __type_params__ annotation return_annotation
types: __class__ __match_args__ delattr
types hints: __dataclass_fields__
subclasses: __subclasses__
lookups: __import__
order: vars __dict__ globals
names texts order: locals
texts names modules: handlers callHandlers lastResort return_exceptions __context__ __cause__
texts names modules: __traceback__ __notes__ addHandler addFilter setLogRecordFactory
texts names modules: setLoggerClass
texts: stderr push __exit__ __aexit__ set_exception_handler settrace unraisablehook setprofile
texts: callbacks excepthook showwarning formatwarning filterwarnings
docs hints names texts: __code__ f_code gi_code cr_code
names namespaces: f_locals f_globals tb_frame f_back
""")
"""Names with which code reads what does not count otherwise: docstrings, names, texts and so on."""
