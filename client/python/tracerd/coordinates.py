"""Where in the parallel layout this process stands, as far as loaded
frameworks say. Nothing is imported that the program has not imported."""

import sys


def coordinates(model):
    """{"dp": [rank, size], ...}; a virtual pipeline is "vpp"."""
    found = {}
    mega = sys.modules.get("megatron.core.parallel_state")
    if mega is not None:
        _ask(
            found, mega, "model_parallel_is_initialized",
            dp="get_data_parallel", tp="get_tensor_model_parallel",
            pp="get_pipeline_model_parallel", cp="get_context_parallel",
            ep="get_expert_model_parallel",
            vpp="get_virtual_pipeline_model_parallel",
        )
    groups = sys.modules.get("deepspeed.utils.groups")
    if groups is not None:
        _ask(
            found, groups, None, dp="get_data_parallel",
            tp="get_tensor_model_parallel", sp="get_sequence_parallel",
        )
    grid = getattr(model, "grid", None)  # of DeepSpeed's pipeline
    if grid is not None and "deepspeed" in sys.modules:
        _ask(
            found, grid, None, dp="get_data_parallel",
            pp="get_pipe_parallel", tp="get_model_parallel",
        )
    for mesh in _meshes(model):
        for name, place in _places(mesh).items():
            found.setdefault(name, place)
    return found


def _ask(found, module, ready, **functions):
    try:
        if ready and not getattr(module, ready)():
            return
    except Exception:
        return
    for name, stem in functions.items():
        try:
            rank = getattr(module, f"{stem}_rank")()
            size = getattr(module, f"{stem}_world_size")()
            found.setdefault(name, [int(rank), int(size)])
        except Exception:
            continue  # a layout without it


def _meshes(model):
    """The meshes that the parameters are on, and those these are parts of."""
    if "torch.distributed.device_mesh" not in sys.modules:
        return []
    meshes = []
    try:
        for parameter in model.parameters():
            mesh = getattr(parameter, "device_mesh", None)
            if mesh is not None and all(mesh is not m for m in meshes):
                meshes.append(mesh)
    except Exception:
        pass
    return meshes + [whole for whole in map(_whole, meshes) if whole]


def _whole(mesh):
    try:
        if hasattr(mesh, "_get_root_mesh"):
            return mesh._get_root_mesh()
        module = sys.modules["torch.distributed.device_mesh"]
        return module._mesh_resources.get_root_mesh(mesh)
    except Exception:
        return None


def _places(mesh):
    try:
        at = mesh.get_coordinate()
        names = mesh.mesh_dim_names or [f"dim{i}" for i in range(mesh.ndim)]
        if at is None:
            return {}
        return {
            n: [int(at[i]), int(mesh.size(i))] for i, n in enumerate(names)
        }
    except Exception:
        return {}
