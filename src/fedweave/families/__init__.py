"""Families of methods: abstract classes that methods combine, one for the server's state, one for the client's.

`Update` is what `client_update` returns. `SGD` and `Adam` are optimisers, for a server that learns too. A network of
PyTorch at the server is an `architecture`, whose parameters `init_parameters` draws.
"""

from fedweave.client.solvers import SGD, Adam
from fedweave.engine.protocol import Update, init_parameters
from fedweave.families.base import ClientModels, GlobalModel, SplitClient
from fedweave.families.generated_models import GeneratedModels
from fedweave.families.networks.architecture import architecture
from fedweave.families.weaving import Weaving
