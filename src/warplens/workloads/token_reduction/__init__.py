"""Token reduction for vision transformers: methods that drop or merge tokens, behind one interface.

| method | acts | keeps |
|---|---|---|
| `none` | – | everything: the control |
| `random` | between attention and MLP | a random choice: the control for "does the choice matter" |
| `topk` | between attention and MLP | what the class token attends to most (TopK, Haurum et al. 2023) |
| `topk-rows` | between attention and MLP | the same tokens, moved as whole rows by one index: another layout |
| `topk-cached` | between attention and MLP | what the first pass chose, again: for inputs that resemble each other |
| `evit` | between attention and MLP | the same, and one token fused from the rest (EViT, Liang et al. 2022) |
| `topk-fused`, `evit-fused` | between attention and MLP | the same tokens, by one kernel: for inference on a GPU |
| `tome` | between attention and MLP | everything, similar tokens merged (ToMe, Bolya et al. 2023) |
| `dynamicvit` | before the block | what a small learned network scores highest (DynamicViT, Rao et al. 2021) |
| `ats` | inside attention, on the queries | a data-dependent sample (ATS, Fayyaz et al. 2022) |

`choosing` has the interface, the token counts that follow from shares, and the methods that drop tokens; `methods`
those that sample, merge or learn, and every method by name. `fused` launches `fused_kernel`, the only module that
imports Triton. A new method needs a subclass of `choosing.Reduction`, a line in `methods.reductions`, and its name in
`settings.METHODS`.
"""
