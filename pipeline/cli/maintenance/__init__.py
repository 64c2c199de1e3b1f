"""Commands that change what a store keeps.

``garbage`` finds data that nobody needs and ``collect`` deletes it; begin with ``garbage``.
``eviction`` deletes the data of artifacts and keeps their manifests, ``acceptance`` records that a
code change does not change results, ``accepted`` reads these records, ``verify`` reads every byte
to find silent corruption.
"""
