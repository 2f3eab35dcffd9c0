package traps

import "testing"

// jobQueues are the kinds of faults that job queues shipped.
var jobQueues = []trap{
	{id: "B01", wrong: "limited on the last attempt was lost; being put back counted as an attempt", like: "L34"},
	{id: "B02", wrong: "one limit refused and another was charged", test: allOrNothing},
	{id: "B03", wrong: "charged for taking a task, for an empty queue, for a task that was too late", like: "L23"},
	{id: "B04", wrong: "what waited was not found after a restart, or held a place that it waited for", test: both(foundAgain, noPlaceWhileItWaits)},
	{id: "B05", wrong: "off by one window at the refill; a lowered limit stalled; writing a limit again reset it", test: both(loweredBelowCost, atTheBoundary)},
	{id: "B06", wrong: "checked, then added: two ran where one may", like: "T02"},
	{id: "B07", wrong: "one of several ways through the code forgot whose limit it was", test: eachVerbItsOwnScope},
	{id: "B08", wrong: "a delayed or unlimited job disturbed the limiter's sleep", test: othersGoOn},
	{id: "B09", wrong: "a cost above all there is waited for ever", test: refusedBeforeItIsEnqueued},
	{id: "B10", wrong: "a remembered refusal hid what had been freed", test: freedAtOnce},
	{id: "B11", wrong: "twice the limit around the edge of a fixed window", like: "T11"},
	{id: "B12", wrong: "what was reserved was released in bulk, over the limit", like: "L35"},
	{id: "B13", wrong: "the worker's clock instead of Redis's", like: "T06"},
	{id: "B14", wrong: "the lease ran out while the task waited in line for a unit", test: both(heldUntilItStarts, heldLongerThanItsLease)},
}

// both runs two tests.
func both(a, b func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { a(t); b(t) }
}

// invariants are what must always hold.
var invariants = []trap{
	{id: "I01", wrong: "more than the limit in some window", like: "T30"},
	{id: "I02", wrong: "more than burst and rate in some interval", like: "T67"},
	{id: "I03", wrong: "a refusal that changed something", like: "T17"},
	{id: "I04", wrong: "some rules charged and others not", like: "B02"},
	{id: "I05", wrong: "a wait that was too short, or longer than needed", like: "T62"},
	{id: "I06", wrong: "all who wait were told the same moment", never: "turns of their own come with planning; until then waits differ by chance and starts are decided one by one (L35)"},
	{id: "I07", wrong: "a cost that can never pass was told to wait", like: "T46"},
	{id: "I08", wrong: "limit 0 let something in", like: "T57"},
	{id: "I09", wrong: "keys that stay for ever or go too soon", like: "T03"},
	{id: "I10", wrong: "one attempt charged twice", like: "T04"},
	{id: "I11", wrong: "a clock that steps locked everybody out, or let more in than its step", test: stepsForward},
	{id: "I12", wrong: "a changed limit that forgot what was spent", like: "T23"},
	{id: "I13", wrong: "windows of fractions and of months that were cut", like: "T32"},
	{id: "I14", wrong: "digits lost on the way through Redis", like: "T62"},
	{id: "I15", wrong: "keys that were not declared, or in several slots", like: "T65"},
	{id: "I16", wrong: "the same limit twice in one call", like: "T16"},
	{id: "I17", wrong: "names that collide or move to another slot", like: "T21"},
	{id: "I18", wrong: "places that a crash kept", test: both(crashedHolder, toldOfTheLoss)},
	{id: "I19", wrong: "a Redis that cannot write, and a silent yes", test: refusesWrites},
	{id: "I20", wrong: "asynq's early and late wakes over the limit", like: "L35"},
	{id: "I21", wrong: "a tenant that waits delayed another", test: oneTenantsWait},
}
