package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
)

const (
	maxQueueName = 128
	// maxWeight bounds a list that asynq shuffles for each task: it repeats a
	// queue's name as often as its weight.
	maxWeight = 1000
	// manyQueues is where looking for a task gets slow: asynq asks one queue
	// after the other.
	manyQueues = 20

	tryQueues = "-queues critical=6,default=3,low=1"
)

// parseQueues reads NAME=WEIGHT,… and reports every fault.
func parseQueues(s string) (map[string]int, error) {
	queues := make(map[string]int)
	var faults []error
	for part := range strings.SplitSeq(s, ",") {
		name, weight, err := parseQueue(strings.TrimSpace(part))
		switch _, twice := queues[name]; {
		case err != nil:
			faults = append(faults, err)
		case twice:
			faults = append(faults, cli.Errorf(tryQueues, "-queues names %q twice", name))
		default:
			queues[name] = weight
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return queues, nil
}

func parseQueue(part string) (string, int, error) {
	name, digits, found := strings.Cut(part, "=")
	switch {
	case part == "":
		return "", 0, cli.Errorf(tryQueues, "-queues has an empty entry")
	case !found:
		return "", 0, cli.Errorf(fmt.Sprintf("-queues %s=1", part), "-queues: %q has no weight", part)
	case !validQueue(name):
		return "", 0, cli.Errorf(tryQueues,
			"-queues: %q is not a queue name: 1 to %d letters, digits, _, - and . are", name, maxQueueName)
	}
	weight, err := strconv.Atoi(digits)
	if err != nil || weight < 1 || weight > maxWeight {
		return "", 0, cli.Errorf(tryQueues, "-queues: the weight of %q is %q, not a whole number from 1 to %d", name, digits, maxWeight)
	}
	return name, weight, nil
}

func validQueue(name string) bool {
	if name == "" || len(name) > maxQueueName {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '.':
		default:
			return false
		}
	}
	return true
}

// queueList names the queues with their weights, in order, for people.
func queueList(queues map[string]int) string {
	list := make([]string, 0, len(queues))
	for name, weight := range queues {
		list = append(list, fmt.Sprintf("%s=%d", name, weight))
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}
