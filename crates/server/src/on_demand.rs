//! Loads models when requests ask for them, and unloads them when others need their room, or nobody has asked for long.
//!
//! One thread does it, a model at a time. Requests for a model that is not there wait, and get it all together; so each
//! load serves those who waited for it, however many models take turns. A model is unloaded only while nobody uses it: where
//! all are in use, the one that was used least lately takes no new requests until those under way have ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::oneshot;

use crate::app::{App, Inner, Models, Place, Seat, Seats, ServedModel, Serving, Wanted, draining, loading};
use crate::error::ApiError;
use crate::loading::Loading;

/// How long to wait before it is looked again whether a model is idle whose room another needs.
const ROOM_INTERVAL: Duration = Duration::from_millis(10);
/// How often it is looked whether models are in use: a part of the time without requests that ends in unloading, from 5 ms
/// to 250 ms.
const LOOKS: u32 = 8;
/// So many looks in succession that find a model in use are a request. One alone may have met somebody who lists models.
const LOOKS_IN_USE: u32 = 2;

/// Loads the models of a server. What it says of a failure goes to clients.
pub trait ModelLoader: Send {
    /// Whether there is such a model, as far as its files tell before its weights are read. It is asked before another
    /// model makes room.
    fn check(&mut self, name: &str) -> Result<(), String>;

    /// Loads the model of this name, and says how far it is.
    fn load(&mut self, name: &str, loading: &Loading) -> Result<ServedModel, LoadFailure>;

    /// Hears that the model of this name is unloaded: all that the engine held is free.
    fn unloaded(&mut self, name: &str);
}

/// Why a model was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadFailure {
    /// It would not be if it were alone, either.
    Always(String),
    /// It does not fit beside the models that are loaded.
    Beside(String),
}

/// How models are loaded on demand.
pub struct OnDemand {
    /// Who loads them.
    pub loader: Box<dyn ModelLoader>,
    /// Models that may be loaded at a time; any number for none.
    pub loaded_max: Option<usize>,
    /// How long a model may be without requests until it is unloaded; for ever for none.
    pub idle_time_max: Option<Duration>,
    /// The program's version, for reports while no model is loaded.
    pub version: &'static str,
}

impl App {
    /// Loads on demand from now on: the models that are offered, and those that were unloaded. To be called once, when all
    /// others are loaded; who asked before waits for it.
    pub fn load_on_demand(&self, on_demand: OnDemand) -> std::io::Result<()> {
        let OnDemand { loader, loaded_max, idle_time_max, version } = on_demand;
        let models = Arc::clone(&self.inner.models);
        {
            let mut seats = models.lock();
            (seats.idle_time_max, seats.version) = (idle_time_max, Some(version));
        }
        let app = Arc::downgrade(&self.inner);
        let keeper = Keeper { app, models, loader, loaded_max: loaded_max.unwrap_or(usize::MAX).max(1), idle_time_max };
        // Nobody waits for this thread: a server that is told to end while it loads ends.
        std::thread::Builder::new().name("on-demand".to_owned()).spawn(move || keeper.run())?;
        Ok(())
    }

    /// The model that the request with this body means, once it is loaded.
    pub(crate) async fn serving_for(&self, body: &Value) -> Result<Arc<Serving>, ApiError> {
        self.serving_any()?;
        self.loaded(self.meant_by(body)?).await
    }

    /// A model, once it is loaded.
    pub(crate) async fn loaded(&self, index: usize) -> Result<Arc<Serving>, ApiError> {
        let waiting = {
            let models = &self.inner.models;
            let mut seats = models.lock();
            let seat = &mut seats.seats[index];
            match &seat.place {
                Place::First => return Err(loading(&models.slots[index].name)),
                Place::Ready(serving) => {
                    if let Some(failure) = serving.engine.failure() {
                        return Err(ApiError::unavailable("failed", failure.to_string()));
                    }
                    if !seat.leaves {
                        seat.last_used = Instant::now();
                        return Ok(Arc::clone(serving));
                    }
                }
                Place::Unloaded { .. } | Place::Loading => {}
            }
            // Under the lock: whoever drains looks at all who wait after that.
            if self.is_draining() {
                return Err(draining());
            }
            let (sender, receiver) = oneshot::channel();
            match seats.wanted.iter_mut().find(|wanted| wanted.index == index) {
                Some(wanted) => wanted.waiters.push(sender),
                None => seats.wanted.push_back(Wanted { index, waiters: vec![sender] }),
            }
            receiver
        };
        self.inner.models.changed.notify_all();
        waiting.await.unwrap_or_else(|_| Err(draining()))
    }
}

impl Seats {
    /// Forgets who has gone; returns the model that is wanted first.
    fn first_wanted(&mut self) -> Option<usize> {
        self.wanted.retain_mut(|wanted| {
            wanted.waiters.retain(|waiter| !waiter.is_closed());
            !wanted.waiters.is_empty()
        });
        self.wanted.front().map(|wanted| wanted.index)
    }

    /// Takes out all who wait for a model.
    fn waiters_of(&mut self, index: usize) -> impl Iterator<Item = oneshot::Sender<Result<Arc<Serving>, ApiError>>> {
        let at = self.wanted.iter().position(|wanted| wanted.index == index);
        at.and_then(|at| self.wanted.remove(at)).into_iter().flat_map(|wanted| wanted.waiters)
    }

    /// A model that has been without requests for so long.
    fn idle_for(&mut self, time: Duration) -> Option<usize> {
        for seat in &mut self.seats {
            seat.found_in_use = if seat.is_loaded() && !seat.is_idle() { seat.found_in_use + 1 } else { 0 };
            if seat.found_in_use >= LOOKS_IN_USE {
                seat.last_used = Instant::now();
            }
        }
        self.seats.iter().position(|seat| seat.is_idle() && seat.last_used.elapsed() >= time)
    }

    /// Of those that are loaded and fulfil the condition, the model that was used least lately.
    fn oldest(&self, fulfils: impl Fn(&Seat) -> bool) -> Option<usize> {
        let fit = self.seats.iter().enumerate().filter(|(_, seat)| seat.is_loaded() && fulfils(seat));
        fit.min_by_key(|(_, seat)| seat.last_used).map(|(index, _)| index)
    }
}

impl Seat {
    fn is_loaded(&self) -> bool {
        matches!(self.place, Place::Ready(_))
    }
}

/// What is to be done.
enum Task {
    Load(usize),
    Unload(usize),
}

/// Keeps the models that are wanted.
struct Keeper {
    app: Weak<Inner>,
    models: Arc<Models>,
    loader: Box<dyn ModelLoader>,
    loaded_max: usize,
    idle_time_max: Option<Duration>,
}

impl Keeper {
    /// Runs until nobody is left who could ask.
    fn run(mut self) {
        while let Some(task) = self.next_task() {
            match task {
                Task::Load(index) => self.provide(index),
                Task::Unload(index) => self.unload(index),
            }
        }
    }

    /// Waits for something to do.
    fn next_task(&self) -> Option<Task> {
        let looks = self.idle_time_max.map(|time| (time / LOOKS).clamp(ROOM_INTERVAL / 2, Duration::from_millis(250)));
        let Models { changed, .. } = &*self.models;
        let mut seats = self.models.lock();
        loop {
            if seats.is_closed {
                return None;
            }
            if let Some(index) = seats.first_wanted() {
                return Some(Task::Load(index));
            }
            if let Some(index) = self.idle_time_max.and_then(|time| seats.idle_for(time)) {
                return Some(Task::Unload(index));
            }
            let waited = match looks.filter(|_| seats.seats.iter().any(Seat::is_loaded)) {
                Some(interval) => changed.wait_timeout(seats, interval).map(|(seats, _)| seats).map_err(|poison| {
                    let (seats, _) = poison.into_inner();
                    seats
                }),
                None => changed.wait(seats).map_err(std::sync::PoisonError::into_inner),
            };
            seats = waited.unwrap_or_else(|seats| seats);
        }
    }

    /// Gives a model to all who wait for it.
    fn provide(&mut self, index: usize) {
        let name = self.models.slots[index].name.clone();
        let is_loaded = {
            let mut seats = self.models.lock();
            seats.seats[index].leaves = false;
            seats.seats[index].is_loaded()
        };
        if is_loaded {
            return self.hand_out(index);
        }
        if let Err(why) = self.loader.check(&name) {
            return self.refuse(index, &name, &why);
        }
        if !self.make_room(index) {
            return;
        }
        let loaded = self.load(index, &name);
        let Some(app) = self.app.upgrade() else { return };
        let seated = loaded.and_then(|model| {
            let cannot = |error: std::io::Error| format!("its engine's thread cannot be started: {error}");
            app.seat(index, ServedModel { name: name.clone(), ..model }).map_err(cannot)
        });
        match seated {
            Ok(_) => self.hand_out(index),
            Err(why) => {
                // What it had taken so far is free.
                self.loader.unloaded(&name);
                self.refuse(index, &name, &why);
            }
        }
    }

    /// Loads a model; where it does not fit beside those that nobody uses, these make room first.
    fn load(&mut self, index: usize, name: &str) -> Result<ServedModel, String> {
        self.models.lock().seats[index].place = Place::Loading;
        loop {
            let (loader, loading) = (&mut self.loader, &self.models.slots[index].loading);
            let loaded = catch_unwind(AssertUnwindSafe(|| loader.load(name, loading)));
            let why = match loaded {
                Ok(Ok(model)) => return Ok(model),
                Ok(Err(LoadFailure::Always(why))) => return Err(why),
                Ok(Err(LoadFailure::Beside(why))) => why,
                Err(_) => return Err("the loader failed in a way that is a bug".to_owned()),
            };
            self.loader.unloaded(name);
            let victim = self.models.lock().oldest(Seat::is_idle);
            match victim {
                Some(victim) => self.unload(victim),
                None => return Err(why),
            }
        }
    }

    fn hand_out(&self, index: usize) {
        let mut seats = self.models.lock();
        let waiters: Vec<_> = seats.waiters_of(index).collect();
        let seat = &mut seats.seats[index];
        seat.last_used = Instant::now();
        let Place::Ready(serving) = &seat.place else { return };
        for waiter in waiters {
            // Whoever has gone needs nothing.
            let _ = waiter.send(Ok(Arc::clone(serving)));
        }
    }

    /// Tells all who wait for a model that it cannot be loaded.
    fn refuse(&self, index: usize, name: &str, why: &str) {
        tracing::error!("`{name}` could not be loaded: {why}");
        let mut seats = self.models.lock();
        seats.seats[index].place = Place::Unloaded { has_failed: true };
        for waiter in seats.waiters_of(index) {
            let message = format!("the model `{name}` could not be loaded: {why}");
            let _ = waiter.send(Err(ApiError::internal("model_not_loaded", message)));
        }
    }

    /// Unloads others until one more may be loaded. False if nobody waits for it any more.
    fn make_room(&mut self, index: usize) -> bool {
        loop {
            let victim = {
                let mut seats = self.models.lock();
                let is_wanted = seats.first_wanted() == Some(index);
                let num_loaded = seats.seats.iter().filter(|seat| seat.is_loaded()).count();
                if seats.is_closed || !is_wanted || num_loaded < self.loaded_max {
                    seats.seats.iter_mut().for_each(|seat| seat.leaves = false);
                    return is_wanted && !seats.is_closed;
                }
                match seats.oldest(Seat::is_idle) {
                    Some(victim) => victim,
                    None => {
                        if !seats.seats.iter().any(|seat| seat.leaves)
                            && let Some(oldest) = seats.oldest(|_| true)
                        {
                            seats.seats[oldest].leaves = true;
                        }
                        drop(self.models.changed.wait_timeout(seats, ROOM_INTERVAL));
                        continue;
                    }
                }
            };
            self.unload(victim);
        }
    }

    /// Unloads a model, unless somebody has begun to use it. Returns when its memory is free.
    fn unload(&mut self, index: usize) {
        let serving = {
            let mut seats = self.models.lock();
            let seat = &mut seats.seats[index];
            if !seat.is_idle() {
                return;
            }
            seat.leaves = false;
            match std::mem::replace(&mut seat.place, Place::Unloaded { has_failed: false }) {
                Place::Ready(serving) => serving,
                other => {
                    seat.place = other;
                    return;
                }
            }
        };
        // A step that is stuck may never return.
        let thread = serving.engine.take_thread().filter(|_| serving.engine.failure().is_none());
        // The thread ends with the last handle.
        drop(serving);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("an engine's thread ended in a way that is a bug");
        }
        self.loader.unloaded(&self.models.slots[index].name);
    }
}
