"""Commands that change what a store keeps.

``garbage`` finds what nobody needs and ``collect`` deletes it; begin with ``garbage``. ``eviction``
lets go of data whose manifest stays, ``acceptance`` records that a code change leaves results as
they are, ``verify`` reads every byte to find silent corruption.
"""
