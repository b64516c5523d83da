// Streams on their own: which handles are used when, and which stream has to wait for which.
#include "core/streams/streams.hpp"

#include <memory>
#include <thread>
#include <vector>

#include "native/sim.hpp"

namespace arena {
namespace {

using test::Sim;

const Streams::Listener kNoListener{[](StreamIndex) {}, [](StreamIndex, std::uint64_t) {}};
const auto kUnused = [](StreamIndex) { return false; };

// A new stream reuses the handle of the last one destroyed.
TEST(a_stream_with_a_reused_handle_is_another_stream_and_has_to_wait) {
  const Sim sim;
  {
    const Device device(sim.driver(), 0);
    std::vector<StreamIndex> forgotten;
    Streams streams(device, {[&](StreamIndex index) { forgotten.push_back(index); }, kNoListener.advance});
    const cu::Stream first = device.new_stream();
    const StreamIndex old = streams.index(first);
    const Mark mark = streams.mark(old);
    CHECK(streams.index(first) == old);
    device.delete_stream(first);
    const cu::Stream second = device.new_stream();
    CHECK(second == first);
    const StreamIndex now = streams.index(second);
    CHECK(now != old && forgotten == std::vector{old});
    CHECK(streams.must_wait(now, Marks(mark)));
    streams.poll(Marks(mark), EventScope::kContexts);  // through the context: the old stream cannot be used
    CHECK(streams.reached(mark));
    device.delete_stream(second);
  }
  sim.check_all_returned();
}

TEST(a_borrowed_handle_is_used_only_during_the_call_that_passed_it) {
  const Sim sim;
  {
    const Device device(sim.driver(), 0);
    Streams streams(device, kNoListener);
    const cu::Stream stream = device.new_stream();
    const StreamIndex index = streams.index(stream);
    sim.reset_counts();
    {
      const Streams::ActiveCall active(streams, index);
      CHECK(streams.ensure_events(Marks(streams.mark(index)), EventScope::kContexts));
    }
    CHECK(sim.calls("cuEventRecord") == 1 && sim.calls("cuCtxRecordEvent") == 0);
    CHECK(streams.ensure_events(Marks(streams.mark(index)), EventScope::kContexts));
    CHECK(sim.calls("cuEventRecord") == 1 && sim.calls("cuCtxRecordEvent") == 1);
    device.delete_stream(stream);
  }
  sim.check_all_returned();
}

TEST(the_owner_of_a_stream_is_kept_until_everything_freed_on_it_is_done) {
  const Sim sim;
  {
    const Device device(sim.driver(), 0);
    Streams streams(device, kNoListener);
    const std::shared_ptr<cu::StreamTag> owner(device.new_stream(), [&](cu::Stream s) { device.delete_stream(s); });
    streams.keep(owner.get(), owner);
    const StreamIndex index = streams.index(owner.get());
    const Mark mark = streams.mark(index);
    streams.drop_idle(kUnused);
    CHECK(owner.use_count() == 2 && streams.index(owner.get()) == index);
    streams.poll_all(EventScope::kStreams);
    CHECK(streams.reached(mark) && streams.are_done());
    streams.drop_idle([&](StreamIndex used) { return used == index; });  // a block will be freed on it
    CHECK(owner.use_count() == 2);
    streams.drop_idle(kUnused);
    CHECK(streams.take_released().size() == 1);
    CHECK(owner.use_count() == 1);
  }
  sim.check_all_returned();
}

TEST(a_borrowed_stream_that_is_kept_from_now_on_stays_the_same_stream) {
  const Sim sim;
  {
    const Device device(sim.driver(), 0);
    Streams streams(device, kNoListener);
    const std::shared_ptr<cu::StreamTag> owner(device.new_stream(), [&](cu::Stream s) { device.delete_stream(s); });
    const StreamIndex index = streams.index(owner.get());
    streams.keep(owner.get(), owner);
    CHECK(streams.index(owner.get()) == index);
  }
  sim.check_all_returned();
}

// But only when its work is done: until then, its marks refer to its index.
TEST(the_index_of_an_ended_threads_stream_is_reused) {
  const Sim sim;
  {
    const Device device(sim.driver(), 0);
    Streams streams(device, kNoListener);
    Mark mark;
    std::thread([&] { mark = streams.mark(streams.index(cu::per_thread_stream())); }).join();
    streams.drop_idle(kUnused);
    const cu::Stream one = device.new_stream(), two = device.new_stream();
    CHECK(streams.index(one) != mark.stream);
    streams.finish(streams.progress());
    streams.drop_idle([&](StreamIndex used) { return used != mark.stream; });
    CHECK(streams.index(two) == mark.stream && streams.reached(mark));
    CHECK(!streams.reached(streams.mark(mark.stream)));
    for (const cu::Stream stream : {one, two}) device.delete_stream(stream);
  }
  sim.check_all_returned();
}

// It would need events of that context, which may be destroyed while they are needed.
TEST(a_stream_of_a_context_that_is_not_primary_is_refused) {
  const Sim sim;
  {
    const Device device(sim.driver(), 0);
    Streams streams(device, kNoListener);
    const test::OtherContext other(sim);
    CHECK_THROWS(UsageError, streams.index(other.stream()));
    CHECK(streams.count() == 0);
  }
  sim.check_all_returned();
}

}  // namespace
}  // namespace arena
