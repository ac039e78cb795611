"""Reports of the predefined studies, from the measurements file that each leaves.

Lives here: the document of each study (`tokenreduction`, `lmgrid`, `attention`) and what chooses between them
(`document`). They read any measurements of their workload, also those of `warplens bench`.
"""

from warplens.report.study.document import study_data, study_document

__all__ = ["study_data", "study_document"]
