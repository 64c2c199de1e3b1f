"""What every room of ``steps/`` may use; it depends on nothing.

``checks`` validates config dataclasses, ``execution_detail`` declares what cannot bear on a result,
``markdown`` shows text that anybody may have written, ``named`` finds what the files of a folder
define, ``accelerators`` is what data sheets say of hardware.
"""
