"""The ClientApp."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from logistic.task import load_data, shares, step

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    rows = load_data(context, "train")
    trained = step(weights, rows, context.run_config["learning-rate"])
    metrics = MetricRecord({"num-examples": len(rows["y"])})
    return Message(RecordDict({"arrays": ArrayRecord([trained]), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    rows = load_data(context, "val")
    correct = float((shares(rows["x"], weights).argmax(1) == rows["y"]).mean())
    metrics = MetricRecord({"accuracy": correct, "num-examples": len(rows["y"])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
