"""The ServerApp."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from logistic.task import initial_weights

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord([initial_weights(context)])
    FedAvg(min_available_nodes=2).start(grid, arrays, num_rounds=int(context.run_config["num-server-rounds"]))
