# Each client: the shares of the two classes in its training rows, and one more row of each. It needs awk alone.
for client in "$1"/clients/*; do
    to="$2/clients/$(basename "$client")"
    mkdir -p "$to"
    share=$(awk -F, 'NR > 1 {sum += $NF} END {print (sum + 1) / (NR + 1)}' "$client/train.csv")
    for part in val test; do
        awk -v p="$share" 'BEGIN {print "p0,p1"} NR > 1 {print 1 - p "," p}' "$client/$part.csv" > "$to/$part.csv"
    done
done
