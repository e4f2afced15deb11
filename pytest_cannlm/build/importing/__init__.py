"""Packages made elsewhere: taken in as they are, into a folder that the engine loads, with a manifest that says so.

``run``        :func:`import_package` does it, beside its final place, and moves it there whole
``entries``    the files of a source by name, checked before one of them is read
``archive``    the same of a zip, with limits
``published``  settings made from the files of a vendor's download, as far as those say what is needed
``given``      what the user adds: settings, CANN version and chip
"""

from pytest_cannlm.build.importing.given import parse_settings
from pytest_cannlm.build.importing.run import ImportedPackage, ImportOrder, import_package, name_of

__all__ = ["ImportOrder", "ImportedPackage", "import_package", "name_of", "parse_settings"]
