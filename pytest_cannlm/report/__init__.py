"""What a run found, as one record, and the views of it. Standard library only; nothing here knows pytest.

``record``       the frozen record of a run, and its JSON-ready form
``json_report``  the record as a file
``junit``        properties of a test, and of the run
``terminal``     the table, the counts and the text of a failed verdict
``text``         cells: widths, shortening, control characters made visible
"""
