// Package sim holds the whole system in one bubble of testing/synctest: a Redis in memory, several workers, clients that enqueue,
// and faults drawn from a seed. A day of traffic takes seconds there, and happens again from its seed.
package sim
