package checker

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
)

// Task is what the checker needs to know of a line of tasks.
type Task struct {
	ID       string
	Scope    string
	Queue    string
	Cost     int64            // requests, where it costs by unit
	Costs    map[string]int64 // by unit; nil where Cost is all
	MaxRetry int
}

// ReadTasks reads tasks as "enqueue batch" takes them, one JSON object a line. A line without an id is refused, since it could
// not be found again. Of several lines with one id the first counts.
func ReadTasks(r io.Reader) ([]Task, error) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 16<<20)
	var tasks []Task
	seen := map[string]bool{}
	for n := 1; in.Scan(); n++ {
		var line struct {
			ID       string          `json:"id"`
			Scope    string          `json:"scope"`
			Queue    string          `json:"queue"`
			Cost     json.RawMessage `json:"cost"`
			MaxRetry *int            `json:"max_retry"`
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("checker: tasks line %d: %w", n, err)
		}
		if line.ID == "" || line.Scope == "" {
			return nil, fmt.Errorf("checker: tasks line %d: the checker needs an id and a scope", n)
		}
		if seen[line.ID] {
			continue
		}
		seen[line.ID] = true
		t := Task{ID: line.ID, Scope: line.Scope, Queue: cmp.Or(line.Queue, "default"), Cost: 1, MaxRetry: 25}
		if err := t.price(line.Cost); err != nil {
			return nil, fmt.Errorf("checker: tasks line %d: cost: %w", n, err)
		}
		if line.MaxRetry != nil {
			t.MaxRetry = *line.MaxRetry
		}
		tasks = append(tasks, t)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("checker: read tasks: %w", err)
	}
	return tasks, nil
}

// price reads what a task costs: a number, or an object by unit.
func (t *Task) price(text json.RawMessage) error {
	switch {
	case text == nil || string(text) == "null":
		return nil
	case text[0] != '{':
		return json.Unmarshal(text, &t.Cost)
	}
	if err := json.Unmarshal(text, &t.Costs); err != nil {
		return err
	}
	if _, given := t.Costs[requests]; !given {
		t.Costs[requests] = 1
	}
	t.Cost = t.Costs[requests]
	return nil
}
